"""Memory of somebody else's as inputs and outputs of the C API: of the host, buffers, dma-bufs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from ctypes import byref, c_int32, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_edge
from tests.native.c_api import CModel, Failed, Tensor, aligned, tensor_of
from tests.onnx_models import conv_relu, random_input
from tests.opencl.support import MASKED, Shim, Worker, copied, worker

INPUT, DEVICE, HANDLE = 1, 3, 5
HOST, CL_MEM, DMA_BUF = 1, 2, 3
SHAPE, RESULT = (1, 3, 16, 16), (1, 8, 1, 1)
NBYTES = 4 * 3 * 16 * 16
READ_WRITE, COPY_HOST_PTR = 1 << 0, 1 << 5

pytestmark = pytest.mark.skipif(MASKED, reason="of OpenCL 3.0 and extensions")


@pytest.fixture(scope="module")
def path(device: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tvm_edge.compile(conv_relu(), "opencl")
    return model.export(tmp_path_factory.mktemp("imports") / "model.tvme")


@pytest.fixture(scope="module", params=["svm", "buffer"])
def process(request: pytest.FixtureRequest, on_shim: dict[str, object]) -> Iterator[Worker]:
    """With shared virtual memory, and with buffers alone."""
    with worker({**on_shim, "TVM_EDGE_OPENCL_MEMORY": request.param}) as started:
        yield started


def as_tensor(name: str, imported: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor with its name, type and shape, as the caller of tvm_edge_import fills it in."""
    like = tensor_of(name, np.zeros(shape, "float32"))
    imported.name, imported.dtype, imported.ndim = like.name, like.dtype, like.ndim
    imported.shape = like.shape
    return imported


def run(model: CModel, given: Tensor, output: Tensor | None = None) -> np.ndarray | None:
    """The result; where an output is given, it is there."""
    room = aligned(RESULT)
    wanted = tensor_of("pooled", room) if output is None else output
    one = c_size_t(1)
    model.library.call("run", model.handle, None, byref(given), one, byref(wanted), one)
    return room if output is None else None


def opencl() -> ctypes.CDLL:
    library = ctypes.CDLL(tvm_edge.opencl.status()["library"])
    library.clCreateBuffer.restype = c_void_p
    return library


def new_buffer(context: c_void_p, content: np.ndarray) -> c_void_p:
    error = c_int32()
    flags = ctypes.c_uint64(READ_WRITE | COPY_HOST_PTR)
    nbytes = c_size_t(content.nbytes)
    data = c_void_p(content.ctypes.data)
    made = opencl().clCreateBuffer(context, flags, nbytes, data, byref(error))
    assert error.value == 0
    return c_void_p(made)


def context_of(model: CModel) -> c_void_p:
    context, device = c_void_p(), c_void_p()
    model.library.call("opencl_context", model.handle, byref(context), byref(device))
    assert context.value and device.value
    return context


def from_buffers(path: Path) -> None:
    """A cl_mem in, and one out; the caller's references may go."""
    model, x = CModel(path), random_input(SHAPE)
    expected = tvm_edge.load(path).run({"data": x})["pooled"]
    live = []
    for _ in range(3):
        given, handle = from_one_buffer(model, x, expected)
        live.append(Shim.here()["buffers"])
    assert live[1] == live[2]
    with pytest.raises(Failed, match="buffer is no handle, or was freed") as caught:
        model.library.call("free_buffer", handle)
    assert caught.value.status == HANDLE
    with pytest.raises(Failed, match="it was freed, or belongs to another device"):
        run(model, given)


def from_one_buffer(model: CModel, x: np.ndarray, expected: np.ndarray) -> tuple[Tensor, c_void_p]:
    """Import both, run, and free them; the input that is none any more."""
    library, context = opencl(), context_of(model)
    buffer, room = new_buffer(context, x), new_buffer(context, np.zeros(RESULT, "float32"))
    given, handle = model.imported(kind=CL_MEM, address=buffer.value, nbytes=NBYTES)
    output, out_handle = model.imported(kind=CL_MEM, address=room.value, nbytes=32)
    assert library.clReleaseMemObject(buffer) == 0
    given, output = as_tensor("data", given, SHAPE), as_tensor("pooled", output, RESULT)
    for _ in range(2):
        np.testing.assert_array_equal(run(model, given), expected)
        assert copied(lambda: run(model, given, output))["in"] == 0
    queue, found = make_queue(model), np.zeros(RESULT, "float32")
    data = c_void_p(found.ctypes.data)
    read = library.clEnqueueReadBuffer
    assert read(queue, room, 1, c_size_t(0), c_size_t(32), data, 0, None, None) == 0
    np.testing.assert_array_equal(found, expected)
    assert library.clReleaseCommandQueue(queue) == 0
    assert library.clReleaseMemObject(room) == 0
    for each in (handle, out_handle):
        model.library.call("free_buffer", each)
    return given, handle


def make_queue(model: CModel) -> c_void_p:
    context, device, error = c_void_p(), c_void_p(), c_int32()
    model.library.call("opencl_context", model.handle, byref(context), byref(device))
    library = opencl()
    library.clCreateCommandQueue.restype = c_void_p
    queue = library.clCreateCommandQueue(context, device, ctypes.c_uint64(0), byref(error))
    assert error.value == 0
    return c_void_p(queue)


def test_buffers_by_handle(process: Worker, path: Path) -> None:
    process(from_buffers, path)


def from_the_host(path: Path) -> None:
    """Kernels see what the host writes between runs."""
    model, python = CModel(path), tvm_edge.load(path)
    x, room = aligned(SHAPE), aligned(RESULT)
    given, handle = model.imported(kind=HOST, address=x.ctypes.data, nbytes=NBYTES)
    output, out_handle = model.imported(kind=HOST, address=room.ctypes.data, nbytes=32)
    given, output = as_tensor("data", given, SHAPE), as_tensor("pooled", output, RESULT)
    for seed in range(4):
        x[:] = random_input(SHAPE, seed)
        expected = python.run({"data": x})["pooled"]
        assert copied(lambda: run(model, given, output))["in"] == 0
        np.testing.assert_array_equal(room, expected)
    for each in (handle, out_handle):
        model.library.call("free_buffer", each)


def test_memory_of_the_host(process: Worker, path: Path) -> None:
    process(from_the_host, path)


def from_files(path: Path) -> int:
    """Anonymous files stand for dma-bufs; returns how many are acquired meanwhile."""
    model, python = CModel(path), tvm_edge.load(path)
    frame, room = os.memfd_create("frame"), os.memfd_create("room")
    os.ftruncate(frame, NBYTES)
    os.ftruncate(room, 4096)
    given, handle = model.imported(kind=DMA_BUF, fd=frame, nbytes=NBYTES)
    output, out_handle = model.imported(kind=DMA_BUF, fd=room, nbytes=32)
    given, output = as_tensor("data", given, SHAPE), as_tensor("pooled", output, RESULT)
    for seed in range(3):
        x = random_input(SHAPE, seed)
        os.pwrite(frame, x.tobytes(), 0)
        assert copied(lambda: run(model, given, output))["in"] == 0
        expected = python.run({"data": x})["pooled"]
        np.testing.assert_array_equal(np.frombuffer(os.pread(room, 32, 0), "f4"), expected.ravel())
    acquired = Shim.here()["acquired"]
    for fd, nbytes, words in (
        (frame, NBYTES + 1, f"the dma-buf has {NBYTES} bytes, and {NBYTES + 1} are wanted"),
        (1000, NBYTES, "file descriptor 1000 is no dma-buf"),
        (frame, 0, "memory of 0 bytes"),
    ):
        with pytest.raises(Failed, match=words) as caught:
            model.imported(kind=DMA_BUF, fd=fd, nbytes=nbytes)
        assert caught.value.status == INPUT
    for each in (handle, out_handle):
        model.library.call("free_buffer", each)
    assert Shim.here()["acquired"] == 0
    os.close(frame)
    os.close(room)
    return acquired


@pytest.mark.parametrize("extension, acquired", [("arm_import", 0), ("khronos_dma_buf", 2)])
def test_dma_bufs(on_shim: dict[str, object], path: Path, extension: str, acquired: int) -> None:
    with worker({**on_shim, "SHIM_SET": f"{extension}=1"}) as process:
        assert process(from_files, path) == acquired
        assert process(refused_by_the_driver, path, extension)


def refused_by_the_driver(path: Path, extension: str) -> bool:
    functions = {
        "arm_import": ["clImportMemoryARM"],
        "khronos_dma_buf": [
            "clCreateBufferWithProperties",
            "clEnqueueAcquireExternalMemObjectsKHR",
        ],
    }
    model, frame = CModel(path), os.memfd_create("frame")
    os.ftruncate(frame, NBYTES)
    live = Shim.here()["buffers"]
    for function in functions[extension]:
        Shim.here().fail(function, -30)
        with pytest.raises(Failed, match=f"{function} failed with CL_INVALID_VALUE") as caught:
            model.imported(kind=DMA_BUF, fd=frame, nbytes=NBYTES)
        assert caught.value.status == INPUT
        assert Shim.here()["buffers"] == live
    return True


def refusals(path: Path) -> list[tuple[int, str]]:
    """Import memory that this process's driver does not take; statuses and messages."""
    model, said = CModel(path), []
    unaligned, frame = aligned(SHAPE, beside=4), os.memfd_create("frame")
    os.ftruncate(frame, NBYTES)
    for source in (
        {"kind": DMA_BUF, "fd": frame, "nbytes": NBYTES},
        {"kind": HOST, "address": unaligned.ctypes.data, "nbytes": NBYTES},
        {"kind": HOST, "address": None, "nbytes": NBYTES},
        {"kind": 9, "nbytes": NBYTES},
        {"kind": CL_MEM, "address": other_context(model, NBYTES), "nbytes": NBYTES},
        {
            "kind": CL_MEM,
            "address": new_buffer(context_of(model), unaligned.ravel()[:8]).value,
            "nbytes": NBYTES,
        },
    ):
        with pytest.raises(Failed) as caught:
            model.imported(**source)
        said.append((caught.value.status, str(caught.value)))
    return said


def other_context(model: CModel, nbytes: int) -> int | None:
    """A buffer of another context than the model's."""
    device, error, library = c_void_p(), c_int32(), opencl()
    library.clCreateContext.restype = c_void_p
    model.library.call("opencl_context", model.handle, byref(c_void_p()), byref(device))
    own = library.clCreateContext(None, 1, byref(device), None, None, byref(error))
    assert error.value == 0
    return new_buffer(c_void_p(own), np.zeros(nbytes, "uint8")).value


def test_what_is_refused(process: Worker, path: Path) -> None:
    no_driver, unaligned, null, kind, context, small = process(refusals, path)
    assert no_driver[0] == DEVICE
    assert "has neither cl_arm_import_memory nor cl_khr_external_memory_dma_buf" in no_driver[1]
    assert unaligned[0] == INPUT and "begins on no multiple of 64 bytes" in unaligned[1]
    assert null == (INPUT, "memory.address is null; pass a pointer")
    assert kind[0] == INPUT and "memory.kind is 9" in kind[1]
    assert context[0] == INPUT and "of another context" in context[1]
    assert small[0] == INPUT and f"has 32 bytes, and {NBYTES} are wanted" in small[1]


def test_drivers_that_cannot(on_shim: dict[str, object], path: Path) -> None:
    """One that says so and lacks the function, and a GPU that would copy the host's memory."""
    with worker({**on_shim, "SHIM_SET": "arm_import=2,own_memory=1"}) as process:
        dma_buf, host, *_ = process(refusals, path)
    assert dma_buf[0] == DEVICE and "its driver lacks clImportMemoryARM" in dma_buf[1]
    assert host[0] == DEVICE and "is no CPU, and its driver would copy" in host[1]


def test_a_model_without_opencl(artifact: Path) -> None:
    model, x = CModel(artifact), aligned(SHAPE)
    with pytest.raises(Failed, match="the model runs on llvm, and memory is imported for OpenCL"):
        model.imported(kind=HOST, address=x.ctypes.data, nbytes=NBYTES)
    output = as_tensor("pooled", Tensor(data=1 << 52, nbytes=32, device_type=4), RESULT)
    with pytest.raises(Failed, match="on a device of the type 4, and the model runs on llvm"):
        run(model, tensor_of("data", x), output)
