"""Sorts and scans of every device behind one interface, and what NumPy makes of the same input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import strategies as st
from tvm import relax

import tvm_edge
from tests.kernels import built_for_cpu
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.lowering import opencl_intrinsics
from tvm_edge.lowering.cuda_compiler import cuda_compiler
from tvm_edge.schedules.emit import Kernel
from tvm_edge.schedules.vision import cpu, gpu

FLOATS = ("float16", "float32", "float64")
INTEGERS = tuple(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u"))
DTYPES = (*FLOATS, *INTEGERS, "bool")


@dataclass(frozen=True)
class Machine:
    """A device as kernels see it.

    Attributes
    ----------
    kind : {"llvm", "opencl", "cuda"}
    spec : DeviceSpec
        Need not be this machine's: it decides which kernels are written.
    """

    kind: str
    spec: DeviceSpec

    @property
    def several_tiles(self) -> int:
        """Elements that fill some tiles: without local memory each pass of many is a build more."""
        return 600 if self.kind == "llvm" or self.spec.local_memory_kind == "dedicated" else 70

    def has(self, dtype: str) -> bool:
        """Whether there are numbers of a type."""
        return self.kind == "llvm" or dtype != "float16" or self.spec.float16

    def argsort(
        self, data: np.ndarray, *, descending: bool = False, index_dtype: str = "int32"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Indices that sort the rows of a matrix, and the sorted rows."""
        how = {"descending": descending, "index_dtype": index_dtype, "values": True}
        kernel = self._rows("argsort_rows", data.shape, str(data.dtype), **how)
        indices, values = self.run(kernel, [data], (data.shape, data.shape))
        return indices, values

    def top_k(
        self, data: np.ndarray, k: int, *, largest: bool = True, index_dtype: str = "int64"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the first `k` of each row of a matrix, and those elements."""
        how = {"largest": largest, "index_dtype": index_dtype}
        dtype, shape = str(data.dtype), (len(data), k)
        if self.kind == "llvm":
            kernel = _kernel(self, "top_k_rows", dtype, k, **how)
        else:
            kernel = _kernel(self, "top_k_rows", *data.shape, k, dtype, **how)
        indices, values = self.run(kernel, [data], (shape, shape))
        return indices, values

    def argsort_segments(
        self,
        data: np.ndarray,
        offsets: np.ndarray,
        *,
        descending: bool = False,
        index_dtype: str = "int64",
    ) -> np.ndarray:
        """Indices that sort the segments of a vector."""
        dtypes = (str(data.dtype), str(offsets.dtype))
        sizes = () if self.kind == "llvm" else (data.size, offsets.size)
        how = {"descending": descending, "index_dtype": index_dtype}
        kernel = _kernel(self, "argsort_segments", *sizes, *dtypes, **how)
        return self.run(kernel, [data, offsets], (data.shape,))[0]

    def scan(self, data: np.ndarray, dtype: str | None = None, **how: Any) -> np.ndarray:
        """Scan the middle axis of three."""
        dtypes = (str(data.dtype), dtype or str(data.dtype))
        kernel = self._rows("scan_lines", data.shape, *dtypes, **how)
        return self.run(kernel, [data], (data.shape,))[0]

    def _rows(self, name: str, shape: tuple[int, ...], *dtypes: str, **how: Any) -> Built:
        """A kernel that takes any shape on a CPU and one shape on a GPU."""
        return _kernel(self, name, *(() if self.kind == "llvm" else shape), *dtypes, **how)

    def run(
        self, built: Built, inputs: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]
    ) -> list[np.ndarray]:
        """Results of the given shapes, in the order of the kernel's outputs."""
        kernel, call = built
        device = tvm.device("cpu" if self.kind == "llvm" else self.kind, 0)
        flat = self.kind != "llvm"
        arrays = [array.reshape(-1) if flat else array for array in inputs]
        for i, (workspace, dtype) in enumerate(kernel.outputs):
            if flat:
                shape = tuple(workspace)
            else:
                shape = shapes[i] if i < len(shapes) else (inputs[0].size,)
            # Not zero: what is not written is seen, in the workspace too.
            arrays.append(np.full(shape, 77).astype(dtype))
        tensors = [tvm.runtime.tensor(array, device) for array in arrays]
        call(*tensors)
        results = tensors[len(inputs) :]
        return [result.numpy().reshape(s) for result, s in zip(results, shapes, strict=False)]


Built = tuple[Kernel, Any]
"""A kernel, and what to call."""


@cache
def _kernel(on: Machine, name: str, *args: Any, **how: Any) -> Built:
    """Write and build a kernel; what is asked for again is there."""
    kernel = getattr(cpu if on.kind == "llvm" else gpu, name)(*args, on.spec, **how)
    return kernel, _compile(on, kernel)


def _compile(on: Machine, kernel: Kernel) -> Any:
    """A kernel as a model's are built: CUDA's not with TVM's fast mathematics."""
    if on.kind == "llvm":
        return built_for_cpu(kernel.func)
    if on.kind == "opencl":
        opencl_intrinsics.register()
    target = resolve_target(on.kind).target
    how = cuda_compiler(str(target.attrs["arch"])) if on.kind == "cuda" else nullcontext()
    with how, target:
        return tvm.compile(kernel.func, target=target)


def run_kernel(
    on: Machine,
    kernel: Kernel,
    *inputs: np.ndarray,
    shapes: Sequence[tuple[int, ...]] | None = None,
) -> list[np.ndarray]:
    """Build a kernel and call it; all its outputs, of `shapes` where those are not known before."""
    call = _compile(on, kernel)
    device = tvm.device("cpu" if on.kind == "llvm" else on.kind, 0)
    sizes = shapes if shapes is not None else [tuple(shape) for shape, _ in kernel.outputs]
    # Not zero: what is not written is seen.
    made = [
        np.full(shape, 77).astype(dtype)
        for shape, (_, dtype) in zip(sizes, kernel.outputs, strict=True)
    ]
    tensors = [tvm.runtime.tensor(array, device) for array in (*inputs, *made)]
    call(*tensors)
    return [tensor.numpy() for tensor in tensors[len(inputs) :]]


MACHINES = ("llvm", "opencl-local", "opencl-alone", "cuda-local", "cuda-alone")
"""A CPU of three cores; GPUs with local memory and, as Mali, without."""


@cache
def machine(name: str, work_group: int = 16) -> Machine:
    """A device by its name in :data:`MACHINES`; small work-groups need few elements for many tiles.

    Skips where this computer has no such device.
    """
    kind, _, memory = name.partition("-")
    if kind != "llvm" and not (tvm.runtime.enabled(kind) and tvm.device(kind, 0).exist):
        pytest.skip(f"no {kind} device on this machine")
    spec = resolve_target(kind).spec
    if kind == "llvm":
        return Machine(kind, replace(spec, cores=3))
    if memory == "alone":
        return Machine(kind, replace(spec, cores=2, local_memory_kind="global"))
    limits: dict[str, Any] = {"local_memory": 48 << 10, "max_work_group_size": work_group}
    return Machine(kind, replace(spec, cores=2, local_memory_kind="dedicated", **limits))


@pytest.fixture(params=MACHINES)
def device(request: pytest.FixtureRequest) -> Machine:
    """Each device of this computer."""
    return machine(str(request.param))


# ------------------------------------------------------------------------------------------- data


def numbers(
    seed: int, shape: int | tuple[int, ...], dtype: str, distinct: int = 1 << 30
) -> np.ndarray:
    """Numbers of any bits, of which `distinct` differ; among floats zeros, infinities and NaNs."""
    random = np.random.default_rng(seed)
    size = int(np.prod(shape))
    if dtype == "bool":
        return random.random(shape) < 0.5
    count = max(1, min(distinct, size))
    bits = np.dtype(dtype).itemsize
    pool = np.frombuffer(random.bytes(count * bits), dtype).copy()
    if dtype.startswith("float"):
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.0, -1.0], dtype)
        where = random.random(count) < 0.5
        pool[where] = random.choice(special, int(where.sum()))
    else:
        limits = np.iinfo(dtype)
        where = random.random(count) < 0.2
        pool[where] = random.choice(np.array([limits.min, limits.max, 0], dtype), int(where.sum()))
    return (
        random.choice(pool, shape) if distinct < size else random.permutation(pool).reshape(shape)
    )


seeds = st.integers(0, 2**32 - 1)
distinct = st.sampled_from([1, 2, 7, 1 << 30])


# ------------------------------------------------------------------------------------- references


def stable_order(data: np.ndarray, descending: bool = False) -> np.ndarray:
    """NumPy's stable argsort of the last axis; descending as well, NaN at the end in both."""
    if not descending:
        return np.argsort(data, axis=-1, kind="stable")
    if data.dtype.kind == "f":
        return np.argsort(-data, axis=-1, kind="stable")
    # Reversed before and after, so that equal elements keep their order.
    return data.shape[-1] - 1 - np.argsort(data[..., ::-1], axis=-1, kind="stable")[..., ::-1]


def segments_order(data: np.ndarray, offsets: np.ndarray, descending: bool = False) -> np.ndarray:
    """Return the stable order of each segment; all else stays."""
    result = np.arange(data.size)
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        result[start:stop] = start + stable_order(data[start:stop], descending)
    return result


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal, and -0 is not 0, nor any NaN another."""
    assert actual.dtype == expected.dtype
    width = f"u{actual.dtype.itemsize}"
    np.testing.assert_array_equal(
        np.ascontiguousarray(actual).view(width), np.ascontiguousarray(expected).view(width)
    )


def run_operator(
    target: str, build: Callable[..., relax.Expr], *values: np.ndarray
) -> list[np.ndarray]:
    """Compile one operator for a target, on which it has to run; its results."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{i}", relax.TensorType(value.shape, str(value.dtype)))
        for i, value in enumerate(values)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(build(*params)))
        builder.emit_func_output(result)
    how: dict[str, Any] = {} if target == "llvm" else {"fallback": "none"}
    model = tvm_edge.compile(builder.get(), target, **how)
    assert model.report.kernels
    assert {kernel.device for kernel in model.report.kernels} == {target}
    assert {placement.device for placement in model.report.placements} <= {target, ""}
    inputs = {tensor.name: value for tensor, value in zip(model.inputs, values, strict=True)}
    return list(model.run(inputs).values())
