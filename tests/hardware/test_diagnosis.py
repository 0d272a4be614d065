"""``doctor``: it sees what is wrong and says what mends it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tvm_edge
from tests.runtime.support import run_python
from tvm_edge import diagnosis
from tvm_edge.diagnosis import Check
from tvm_edge.opencl.diagnosis import explain


@pytest.fixture(scope="module")
def here() -> tvm_edge.Diagnosis:
    """Of this process, which is healthy."""
    return tvm_edge.doctor()


def check(name: str) -> Check:
    """The check called `name`, made now, without those behind it: OpenCL's takes a process."""
    return next(each for each in diagnosis._checks() if each.name == name)


def healthy(here: tvm_edge.Diagnosis, found: Check) -> bool:
    """Whether this process would be healthy with this finding in place of its own."""
    checks = tuple(found if each.name == found.name else each for each in here.checks)
    assert found in checks
    return tvm_edge.Diagnosis(checks).healthy


def install(folder: Path, package: str, version: str) -> None:
    """Make `package` look installed in `version`, as pip would record it."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def test_healthy_here(here: tvm_edge.Diagnosis) -> None:
    assert here.healthy
    names = [each.name for each in here.checks]
    assert len(set(names)) == len(names)
    assert {"apache-tvm", "apache-tvm-ffi", "LLVM", "C++ compiler", "CUDA", "OpenCL"} <= set(names)


def test_every_finding_comes_with_a_remedy(here: tvm_edge.Diagnosis) -> None:
    for each in here.checks:
        assert each.found and each.needed_for
        assert (each.command == "") == (each.status == "ok"), each


def test_as_json_and_as_a_table(here: tvm_edge.Diagnosis) -> None:
    fields = json.loads(json.dumps(here.to_dict()))
    assert fields["healthy"] is True
    assert [each["name"] for each in fields["checks"]] == [c.name for c in here.checks]
    table = str(here)
    for each in here.checks:
        assert each.name in table
        assert each.command.split(" ")[0] in table


@pytest.mark.parametrize(
    ("package", "version"), [("apache-tvm", "0.25.0"), ("apache-tvm-ffi", "0.1.15.post2")]
)
def test_a_wrong_pin(
    package: str,
    version: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    here: tvm_edge.Diagnosis,
) -> None:
    install(tmp_path, package, version)
    monkeypatch.syspath_prepend(tmp_path)
    found = check(package)
    assert (found.status, found.found) == ("wrong", version)
    assert found.command.startswith(f"pip install {package}==")
    assert not healthy(here, found)


def test_both_tested_versions_of_tvm_ffi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "apache-tvm-ffi", "0.1.14.post0")
    monkeypatch.syspath_prepend(tmp_path)
    found = check("apache-tvm-ffi")
    assert (found.status, found.found) == ("ok", "0.1.14.post0")


def test_onnx_is_optional(monkeypatch: pytest.MonkeyPatch, here: tvm_edge.Diagnosis) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    found = check("onnx")
    assert found.status == "missing"
    assert found.command == "pip install 'tvm-edge[onnx]'"
    assert healthy(here, found)


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = check("C++ compiler")
    assert found.status == "missing"
    assert found.command == "apt-get install g++"


LLVM = """
import json
from dataclasses import asdict
from tvm_edge import diagnosis
print(json.dumps(asdict(next(c for c in diagnosis._checks() if c.name == "LLVM"))))
"""


def test_the_runtime_tier_cannot_compile(here: tvm_edge.Diagnosis) -> None:
    llvm = Check(**json.loads(run_python(LLVM, environment={"TVM_USE_RUNTIME_LIB": "1"})))
    assert (llvm.status, llvm.command) == ("missing", "unset TVM_USE_RUNTIME_LIB")
    assert not healthy(here, llvm)


def test_a_board_whose_compiler_was_removed(here: tvm_edge.Diagnosis) -> None:
    """TVM loads its runtime library then, without the variable that asks for it."""
    fallen_back = """
import os, tvm
del os.environ["TVM_USE_RUNTIME_LIB"]
"""
    llvm = Check(
        **json.loads(run_python(fallen_back + LLVM, environment={"TVM_USE_RUNTIME_LIB": "1"}))
    )
    assert llvm.status == "missing" and "libtvm_compiler.so" in llvm.found
    assert llvm.command.startswith("pip install --force-reinstall apache-tvm==")
    assert not healthy(here, llvm)


def test_a_tvm_that_does_not_load(here: tvm_edge.Diagnosis) -> None:
    """A broken installation is diagnosed, not raised."""
    llvm = Check(**json.loads(run_python(LLVM, blocked=("tvm",))))
    assert llvm.status == "missing"
    assert llvm.command.startswith("pip install --force-reinstall apache-tvm==")
    assert not healthy(here, llvm)


@pytest.fixture
def opencl_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], str]:
    """Make a library of some lines of C the one that OpenCL is looked for in; its path."""

    def build(source: str) -> str:
        written, library = tmp_path / "library.c", tmp_path / "library.so"
        written.write_text(source)
        subprocess.run(["gcc", "-shared", "-fPIC", written, "-o", library], check=True)
        monkeypatch.setenv("TVM_EDGE_OPENCL_LIBRARY", str(library))
        return str(library)

    return build


def opencl_check(here: tvm_edge.Diagnosis) -> Check:
    """OpenCL's check in the environment as it is now; the process that it starts inherits it."""
    found = diagnosis._opencl()
    assert healthy(here, found), "OpenCL is optional"
    return found


def test_no_opencl_library(here: tvm_edge.Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_EDGE_OPENCL_LIBRARY", "/no/libOpenCL.so")
    opencl = opencl_check(here)
    assert opencl.status == "wrong"
    assert "/no/libOpenCL.so" in opencl.found
    assert opencl.command == "unset TVM_EDGE_OPENCL_LIBRARY"


def test_an_opencl_driver_that_crashes(
    here: tvm_edge.Diagnosis, opencl_library: Callable[[str], str]
) -> None:
    """The process that asks for the diagnosis, which is this one, survives it."""
    opencl_library("__attribute__((constructor)) static void f(void) { __builtin_trap(); }\n")
    opencl = opencl_check(here)
    assert opencl.status == "wrong"
    assert "SIGILL" in opencl.found or "SIGTRAP" in opencl.found


def test_a_library_that_is_not_opencl(
    here: tvm_edge.Diagnosis, opencl_library: Callable[[str], str]
) -> None:
    library = opencl_library("int nothing;\n")
    opencl = opencl_check(here)
    assert f"{library} is no OpenCL 1.2 library" in opencl.found


def test_a_driver_that_does_not_load_is_named() -> None:
    """Beside one that works, and alone, where a missing permission goes before all."""
    device = {"name": "a GPU", "type": "gpu", "version": "OpenCL 3.0", "used": True}
    complaint = "/etc/OpenCL/vendors/x.icd names a driver that does not load"
    seen = {"library": "libOpenCL.so.1", "error": "", "complaints": [complaint], "advice": ""}
    beside = explain({**seen, "devices": [device]})
    assert beside.usable and beside.broken
    assert complaint in beside.found and "a GPU" in beside.found and beside.command
    alone = explain({**seen, "devices": [], "error": "no platform", "advice": "sudo usermod"})
    assert not alone.usable and alone.broken
    assert complaint in alone.found and alone.command == "sudo usermod"
    fine = explain({**seen, "devices": [device], "complaints": []})
    assert (fine.usable, fine.broken, fine.command) == (True, False, "")


def test_autoload_switched_off(here: tvm_edge.Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_DEVICE_BACKEND_AUTOLOAD", "0")
    assert "TVM_DEVICE_BACKEND_AUTOLOAD" in opencl_check(here).found
