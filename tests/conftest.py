"""Fixtures and marks of all tests."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import platformdirs
import pytest
import tvm

import tvm_edge
from tests.global_functions import overridden
from tests.mounts import Mount, mounting
from tests.onnx_models import conv_relu, random_input
from tvm_edge.compiler import compilation, kernel_objects, parallel_fusion
from tvm_edge.hardware import ResolvedTarget, resolve_target
from tvm_edge.hardware.tensor_cores import TURING

# pocl takes twenty times as long to hand a program out as to build it; the tests of the cache name
# a folder of their own.
os.environ.setdefault("TVM_EDGE_OPENCL_CACHE", "0")

# Kernels that did not change since the tests ran before take two fifths of their time. They are
# found by the sources that lower them; tests of what is built have no cache, or one of their own.
os.environ.setdefault(
    "TVM_EDGE_CACHE", str(platformdirs.user_cache_path("tvm-edge") / "kernels-of-tests")
)
# Those of a run are half of what fits by default: the next checkout's would put them out.
os.environ.setdefault("TVM_EDGE_CACHE_SIZE", "1024")

# Half of the time of a test of kernels on pocl is LLVM's optimisation of them.
os.environ.setdefault("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")

# The workers of TVM's pools look for work for a tenth of a second before they sleep, and every test
# that runs a kernel would have them take the core that a test beside it needs.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")

# So do NumPy's, of which each process that imports it starts one for each core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# TVM's passes and LLVM make small objects all over the heap: with huge pages of the kernel's, where
# it has them, workers and other child processes take about a twentieth less time.
os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")

# Hundreds of child processes import tvm_edge: a third of that would be to compile its sources.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# TVMScript asks `inspect` for the source of every frame of the stack, at each function. Where a
# frame has no file, that looks through all modules: half of the time of a collection.
inspect.modulesbyfile |= {
    "<frozen importlib._bootstrap>": "importlib._bootstrap",
    "<frozen importlib._bootstrap_external>": "importlib._bootstrap_external",
    "<frozen runpy>": "runpy",
    "<string>": "__main__",  # execnet, which starts the workers
}

# Half of the time of a compilation for a CPU is LLVM's optimisation of its kernels. Child processes
# (examples, the command line, candidates of tuning, boards) have them as users do, and so have
# `make test-full` and what asks for `optimised`.
_BUILD = "target.build.llvm"
_build = tvm.get_global_func(_BUILD)
_optimises = bool(os.environ.get("TVM_EDGE_TEST_OPTIMISED"))


@tvm.register_global_func(_BUILD, override=True)
def _build_for_tests(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    return _build(mod, _for_tests(target))


def _for_tests(target: tvm.target.Target) -> tvm.target.Target:
    return target if _optimises else tvm.target.Target({**target.export(), "opt-level": 0})


# The cache of built kernels tells them apart by what they are built for.
_optimised = kernel_objects.optimised
kernel_objects.optimised = lambda target, func: _for_tests(_optimised(target, func))


# Collecting tests makes a million objects that all stay. Python would look for garbage among them
# again and again, a seventh of that time, and later whenever a test has made some.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from here on, of what tests make."""
    gc.freeze()
    gc.enable()


# A shell starts what runs in its background with Ctrl-C ignored, and processes inherit that: tests
# that send it to themselves or to a command would wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What whoever runs the tests has measured is none of their business; nobody makes this folder.
os.environ["TVM_EDGE_TUNING_LOGS"] = "/nonexistent/tvm-edge/tuning_logs"


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Select every `step`-th diagonal of a test marked ``diagonals(step)`` for ``make test``.

    Devices and shapes, say: each shape on some devices, each device with some shapes, where one
    mechanism is tested at many points; of a single parameter every `step`-th value. ``make
    test-full`` runs the others. Tests that ask for ``pocl_as_written`` are marked, so that it can
    run them by themselves.
    """
    places: dict[tuple[str, int], dict[tuple[int, ...], int]] = {}
    for item in items:
        mark = item.get_closest_marker("diagonals")
        if mark is None or item.get_closest_marker("full"):
            continue
        diagonal = 0
        for number, values in enumerate(_axes(item)):
            seen = places.setdefault((item.nodeid.split("[")[0], number), {})
            diagonal += seen.setdefault(values, len(seen))
        if diagonal % mark.args[0]:
            item.add_marker(pytest.mark.full)
    for item in items:
        if "pocl_as_written" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.as_written)


def _axes(item: Any) -> Iterator[tuple[int, ...]]:
    """Which values a test has of each of its parameters; those given together are one."""
    params = dict(item.callspec.params)
    for given in item.iter_markers("parametrize"):
        names = given.args[0]
        names = names.split(",") if isinstance(names, str) else names
        yield tuple(id(params.pop(name.strip())) for name in names)
    for value in params.values():
        yield (id(value),)


@pytest.fixture
def no_kernel_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel is built."""
    monkeypatch.setenv("TVM_EDGE_CACHE", "0")


@pytest.fixture
def optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for CPUs that LLVM optimises."""
    monkeypatch.setattr(sys.modules[__name__], "_optimises", True)


@pytest.fixture(scope="session")
def small_model() -> onnx.ModelProto:
    """A convolution, a ReLU and a pool with random weights."""
    return conv_relu()


@pytest.fixture(scope="session")
def compiled_small(small_model: onnx.ModelProto) -> tvm_edge.CompiledModel:
    """`small_model` compiled for this machine, as users have it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys.modules[__name__], "_optimises", True)
        return tvm_edge.compile(small_model, "llvm")


@pytest.fixture(scope="session")
def image() -> np.ndarray:
    """An input of `small_model`."""
    return random_input((1, 3, 16, 16))


@pytest.fixture(scope="session")
def artifact(
    compiled_small: tvm_edge.CompiledModel, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """`small_model` compiled and exported. Not to be changed: copy it first."""
    return compiled_small.export(tmp_path_factory.mktemp("artifact") / "small.tvme")


# Of a module, not of the session: pytest brings together what shares a parameter of a scope, and a
# module's tests should stay together, for what it compiles once.
@pytest.fixture(scope="module", params=["opencl", "cuda"])
def gpu(request: pytest.FixtureRequest) -> str:
    """A kind of GPU of this machine; skips where there is none."""
    kind = str(request.param)
    if not tvm.runtime.enabled(kind) or not tvm.device(kind, 0).exist:
        pytest.skip(f"no {kind} device on this machine")
    return kind


@pytest.fixture(scope="session")
def on_opencl() -> None:
    """Skips where there is no OpenCL device; by the mark `needs_opencl`, too."""
    if not tvm.runtime.enabled("opencl") or not tvm.opencl(0).exist:
        pytest.skip("no OpenCL device on this machine")


def _compile_as_if(monkeypatch: pytest.MonkeyPatch, **properties: Any) -> None:
    """Compile for this machine's GPU as if it had these properties."""

    def resolve(target: Any, host: Any = None) -> ResolvedTarget:
        resolved = resolve_target(target, host)
        if resolved.spec.kind != "gpu":
            return resolved
        return replace(resolved, spec=replace(resolved.spec, **properties))

    monkeypatch.setattr(compilation, "resolve_target", resolve)
    # pocl, a CPU still: its optimiser is wrong about merged kernels that have barriers. Nor by
    # records that ship for the real device. Tests of parallel fusion ask for it.
    monkeypatch.setattr(parallel_fusion, "fuses_by_itself", lambda _: False)
    monkeypatch.setattr(parallel_fusion, "group_records", lambda *_: nullcontext())


@pytest.fixture
def pocl_as_written() -> None:
    """pocl 3.1 leaves its optimiser out in `make test-full`, too, which runs these by themselves.

    It is wrong about merged kernels that have barriers, and corrupts what is beside their results,
    where CUDA, Intel's runtime for CPUs and pocl without it are right. A process decides once: what
    its first kernel was built with holds for all.
    """
    if "-cl-opt-disable" not in os.environ["POCL_EXTRA_BUILD_FLAGS"]:
        pytest.skip("pocl optimises in this process; tools/test_full.py runs it without")


@pytest.fixture
def own_memory() -> Iterator[None]:
    """An OpenCL device that is the CPU gets copies of weights, as others do."""
    with overridden("tvm_edge.opencl.borrow", lambda _borrow: lambda *_: None):
        yield


@pytest.fixture
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile for this machine's GPU, pocl among them, by the rules for those of phones."""
    _compile_as_if(
        monkeypatch,
        on_cpu=False,
        simd_bytes=16,
        local_memory_kind="global",
        tensor_cores=None,
        cores=4,
    )


@pytest.fixture
def large_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile for this machine's GPU as if it had the cores and waves of a server's.

    Schedules choose by them; what they choose for a large GPU has to be right on pocl as well.
    """
    _compile_as_if(
        monkeypatch,
        on_cpu=False,
        simd_bytes=16,
        tensor_cores=None,
        cores=132,
        alus=128,
        wave=32,
        sub_groups=(),
        registers=65536,
        max_work_group_size=1024,
        local_memory=49152,
        local_memory_kind="dedicated",
        launch_us=4.5,  # cheap ones make some convolutions Winograd's
    )


@pytest.fixture
def turing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile for this machine's GPU by the kernels of Turing, whose instructions others have."""
    _compile_as_if(monkeypatch, tensor_cores=TURING)


@pytest.fixture
def slow_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile for this machine's GPU as if it were far slower than the CPU beside it."""
    _compile_as_if(monkeypatch, on_cpu=False, peak_gflops=1.0, bandwidth_gbs=0.5)


@pytest.fixture
def mount_tmpfs() -> Iterator[Mount]:
    """Mount a tmpfs with options on a folder until the test ends."""
    with mounting() as mount:
        yield mount
