"""The device, and the library that stands in for OpenCL's.

Run on another device with ``TVM_EDGE_OPENCL=platform:device``; every test uses ``tvm.opencl(0)``.
On a machine that has only TVM and pytest:
``python -m pytest -c /dev/null --rootdir . --confcutdir tests/opencl tests/opencl``.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm

from tests.opencl import support

# A test that means to use the program cache names a folder of its own.
os.environ["TVM_EDGE_OPENCL_CACHE"] = "0"


@pytest.fixture(scope="session", autouse=True)
def plugged_in(tmp_path_factory: pytest.TempPathFactory) -> None:
    """`import tvm` loads the runtime, here and in child processes.

    Where the package is not installed, a folder with nothing but its entry point goes on the
    children's PYTHONPATH, so that they take the way of an installed package.
    """
    import tvm_edge.opencl

    paths = [str(support.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    installed = importlib.metadata.entry_points(group="tvm.backends")
    if not any(point.value.startswith("tvm_edge.opencl:") for point in installed):
        folder = tmp_path_factory.mktemp("entry_point")
        info = folder / "tvm_edge_entry_point-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tvm-edge-entry-point\n")
        (info / "entry_points.txt").write_text(
            "[tvm.backends]\ntvm_edge_opencl = tvm_edge.opencl:autoload\n"
        )
        paths.append(str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    if tvm.get_global_func("device_api.opencl", allow_missing=True) is None:
        tvm_edge.opencl.autoload()


@pytest.fixture(scope="session")
def device(plugged_in: None) -> Any:
    """The OpenCL device; the test is skipped where there is none."""
    import tvm_edge.opencl

    if not tvm.opencl(0).exist:
        pytest.skip(f"no OpenCL device: {tvm_edge.opencl.status()['error']}")
    return tvm.opencl(0)


@pytest.fixture(scope="session")
def used(device: Any) -> dict[str, Any]:
    """`status()`'s entry of `device`."""
    import tvm_edge.opencl

    return next(d for d in tvm_edge.opencl.status()["devices"] if d["used"])


@pytest.fixture(scope="session")
def real_library(device: Any) -> str:
    """The OpenCL library that this process, or the stand-in it runs on, forwards to."""
    import tvm_edge.opencl

    return os.environ.get("SHIM_REAL") or tvm_edge.opencl.status()["library"]


@pytest.fixture(scope="session")
def shim_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libOpenCL.so, of OpenCL 1.2 in a masked run."""
    if not (shutil.which("gcc") or shutil.which("cc")):
        pytest.skip("the stand-in for libOpenCL.so needs a C compiler")
    return support.build_shim(tmp_path_factory.mktemp("shim"), masked=support.MASKED)


@pytest.fixture(scope="session")
def on_shim(shim_library: Path, real_library: str) -> dict[str, object]:
    """The environment of a child that runs on the stand-in."""
    return {"TVM_EDGE_OPENCL_LIBRARY": shim_library, "SHIM_REAL": real_library}


@pytest.fixture(scope="session")
def shimmed_worker(on_shim: dict[str, object]) -> Iterator[support.Worker]:
    """One worker on the stand-in, shared."""
    with support.worker(on_shim) as started:
        yield started


@pytest.fixture
def shimmed(shimmed_worker: support.Worker) -> Iterator[support.Worker]:
    """A worker on the stand-in, without faults left by the test before."""
    yield shimmed_worker
    shimmed_worker(clear_shim)


def clear_shim() -> None:
    """Undo `shimmed`: nothing is left behind."""
    support.Shim.here().clear()


@pytest.fixture(scope="session", params=["default", "buffer", "svm"])
def run(request: pytest.FixtureRequest, device: Any) -> Iterator[Callable[..., Any]]:
    """Calls a function where TVM_EDGE_OPENCL_MEMORY is so; the default in this process."""
    import tvm_edge.opencl

    if request.param == "default":
        yield lambda function, *arguments: function(*arguments)
        return
    if request.param == "svm" and tvm_edge.opencl.device_info()["svm"] == "none":
        pytest.skip("the device has no shared virtual memory")
    kinds = {"buffer": ("buffer", "mapped"), "svm": ("svm-fine", "svm-coarse")}
    with support.worker({"TVM_EDGE_OPENCL_MEMORY": request.param}) as started:
        assert started(support.memory_kind) in kinds[request.param]
        yield started


@pytest.fixture(scope="session")
def modules(device: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the modules of `programs.two_adders`."""
    from tests.opencl import programs

    folder = tmp_path_factory.mktemp("modules")
    for name, data in programs.two_adders().items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def run_python() -> Any:
    """``run_python(code, *arguments, **environment)``: standard output of a child that ended well.

    An environment variable set to None is removed.
    """

    def run(code: str, *arguments: object, **environment: object) -> str:
        done = support.run_child("-c", code, *arguments, environment=environment)
        assert done.returncode == 0, done.stderr
        sys.stderr.write(done.stderr)
        return done.stdout

    return run


# What the stand-in's device, or the runtime, is told.
_KINDS: dict[str, dict[str, object]] = {
    "default": {},
    "mapped": {"TVM_EDGE_OPENCL_MEMORY": "buffer"},
    "svm-coarse": {"TVM_EDGE_OPENCL_MEMORY": "svm", "SHIM_SET": "coarse_svm=1"},
    "buffer": {"SHIM_SET": "own_memory=1"},
}


@pytest.fixture(scope="module", params=_KINDS)
def host_access(
    request: pytest.FixtureRequest, on_shim: dict[str, object]
) -> Iterator[support.Worker]:
    """A worker for each way in which a device has its memory."""
    kind = request.param
    if support.MASKED and kind == "svm-coarse":
        pytest.skip("OpenCL 1.2 has no shared virtual memory")
    with support.worker({**on_shim, **_KINDS[kind]}) as started:
        found = started(support.memory_kind)
        if kind == "mapped" and found == "buffer":
            pytest.skip("the device has memory of its own")
        assert kind in ("default", found)
        yield started
