"""Where OpenCL is missing or broken, `import tvm` says nothing and works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm

import tvm_edge.opencl
from tests.opencl.support import run_child, worker

RunPython = Callable[..., str]


def what_is_there() -> tuple[bool, str]:
    """Whether there is a device, and why not."""
    return bool(tvm.opencl(0).exist), tvm_edge.opencl.status()["error"]


def libraries(folder: Path) -> dict[str, Path]:
    """Paths that are no OpenCL library."""
    text = folder / "text.so"
    text.write_text("not a library")
    return {
        "missing": folder / "libNone.so",
        "not a library": text,
        "another library": Path("libm.so.6"),
    }


@pytest.mark.parametrize("case", ["missing", "not a library", "another library"])
def test_what_is_wrong_is_said_when_asked(tmp_path: Path, case: str) -> None:
    library = libraries(tmp_path)[case]
    with worker({"TVM_EDGE_OPENCL_LIBRARY": library}) as run:
        exists, error = run(what_is_there)
    assert not exists
    assert str(library) in error


def test_import_is_silent(tmp_path: Path) -> None:
    """It opens no library (below), so that any that is none will do."""
    library = libraries(tmp_path)["not a library"]
    done = run_child("-c", "import tvm", environment={"TVM_EDGE_OPENCL_LIBRARY": library})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


AFTER_IMPORT = """
import sys
import tvm
print(*sorted(m for m in sys.modules if m.startswith("tvm_edge")))
print("libOpenCL" in open("/proc/self/maps").read())
print(bool(tvm.opencl(0).exist))
print("OpenCL" in open("/proc/self/maps").read())
"""


def test_import_opens_no_library_and_touches_nothing_else(
    device: Any, run_python: RunPython
) -> None:
    """A driver costs hundreds of milliseconds and starts threads: only who uses it pays.

    The entry point alone does it: nothing of tvm_edge is named.
    """
    modules, opened, exists, opened_then = run_python(AFTER_IMPORT).splitlines()
    assert (opened, exists, opened_then) == ("False", "True", "True")
    for module in modules.split():
        assert module == "tvm_edge" or module.startswith(
            ("tvm_edge.opencl", "tvm_edge._version", "tvm_edge.errors", "tvm_edge.library_path")
        ), module


def test_autoload_twice_is_once(run_python: RunPython) -> None:
    """A second registration of a global would end the process."""
    run_python("import tvm, tvm_edge.opencl as o; o.autoload(); o.autoload()")


def test_tvms_switch_keeps_it_out(run_python: RunPython) -> None:
    code = "import tvm; print(tvm.get_global_func('device_api.opencl', allow_missing=True))"
    assert run_python(code, TVM_DEVICE_BACKEND_AUTOLOAD="0").strip() == "None"
