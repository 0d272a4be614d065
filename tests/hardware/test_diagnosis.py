"""``doctor``: it sees what is wrong and says what mends it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tvm_edge
from tests.runtime.support import run_python
from tvm_edge.diagnosis import Check
from tvm_edge.opencl.diagnosis import explain


def check(diagnosis: tvm_edge.Diagnosis, name: str) -> Check:
    """The one check called `name`."""
    (found,) = [each for each in diagnosis.checks if each.name == name]
    return found


def install(folder: Path, package: str, version: str) -> None:
    """Make `package` look installed in `version`, as pip would record it."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def test_healthy_here() -> None:
    diagnosis = tvm_edge.doctor()
    assert diagnosis.healthy
    names = [each.name for each in diagnosis.checks]
    assert len(set(names)) == len(names)
    assert {"apache-tvm", "apache-tvm-ffi", "LLVM", "C++ compiler", "CUDA", "OpenCL"} <= set(names)


def test_every_finding_comes_with_a_remedy() -> None:
    for each in tvm_edge.doctor().checks:
        assert each.found and each.needed_for
        assert (each.command == "") == (each.status == "ok"), each


def test_as_json_and_as_a_table() -> None:
    diagnosis = tvm_edge.doctor()
    fields = json.loads(json.dumps(diagnosis.to_dict()))
    assert fields["healthy"] is True
    assert [each["name"] for each in fields["checks"]] == [c.name for c in diagnosis.checks]
    table = str(diagnosis)
    for each in diagnosis.checks:
        assert each.name in table
        assert each.command.split(" ")[0] in table


@pytest.mark.parametrize(
    ("package", "version"), [("apache-tvm", "0.25.0"), ("apache-tvm-ffi", "0.1.15.post2")]
)
def test_a_wrong_pin(
    package: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, package, version)
    monkeypatch.syspath_prepend(tmp_path)
    diagnosis = tvm_edge.doctor()
    found = check(diagnosis, package)
    assert (found.status, found.found) == ("wrong", version)
    assert found.command.startswith(f"pip install {package}==")
    assert not diagnosis.healthy


def test_both_tested_versions_of_tvm_ffi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "apache-tvm-ffi", "0.1.14.post0")
    monkeypatch.syspath_prepend(tmp_path)
    assert check(tvm_edge.doctor(), "apache-tvm-ffi").status == "ok"


def test_onnx_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    diagnosis = tvm_edge.doctor()
    found = check(diagnosis, "onnx")
    assert found.status == "missing"
    assert found.command == "pip install 'tvm-edge[onnx]'"
    assert diagnosis.healthy


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = check(tvm_edge.doctor(), "C++ compiler")
    assert found.status == "missing"
    assert found.command == "apt-get install g++"


NO_LLVM = """
import json
import tvm_edge
print(json.dumps(tvm_edge.doctor().to_dict()))
"""


def test_the_runtime_tier_cannot_compile() -> None:
    found = json.loads(run_python(NO_LLVM, environment={"TVM_USE_RUNTIME_LIB": "1"}))
    (llvm,) = [each for each in found["checks"] if each["name"] == "LLVM"]
    assert (llvm["status"], llvm["command"]) == ("missing", "unset TVM_USE_RUNTIME_LIB")
    assert not found["healthy"]


def test_a_tvm_that_does_not_load() -> None:
    """A broken installation is diagnosed, not raised."""
    found = json.loads(run_python(NO_LLVM, blocked=("tvm",)))
    (llvm,) = [each for each in found["checks"] if each["name"] == "LLVM"]
    assert llvm["status"] == "missing"
    assert llvm["command"].startswith("pip install --force-reinstall apache-tvm==")
    assert not found["healthy"]


def opencl_check(**environment: str) -> dict[str, str]:
    found = json.loads(run_python(NO_LLVM, environment=environment))
    (opencl,) = [each for each in found["checks"] if each["name"] == "OpenCL"]
    assert found["healthy"], "OpenCL is optional"
    return opencl


def test_no_opencl_library() -> None:
    opencl = opencl_check(TVM_EDGE_OPENCL_LIBRARY="/no/libOpenCL.so")
    assert opencl["status"] == "wrong"
    assert "/no/libOpenCL.so" in opencl["found"]
    assert opencl["command"] == "unset TVM_EDGE_OPENCL_LIBRARY"


def test_an_opencl_driver_that_crashes(tmp_path: Path) -> None:
    """The process that asks for the diagnosis survives what the driver does not."""
    source, library = tmp_path / "crash.c", tmp_path / "libcrash.so"
    source.write_text("__attribute__((constructor)) static void f(void) { __builtin_trap(); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True)
    opencl = opencl_check(TVM_EDGE_OPENCL_LIBRARY=str(library))
    assert opencl["status"] == "wrong"
    assert "SIGILL" in opencl["found"] or "SIGTRAP" in opencl["found"]


def test_a_library_that_is_not_opencl(tmp_path: Path) -> None:
    source, library = tmp_path / "empty.c", tmp_path / "libempty.so"
    source.write_text("int nothing;\n")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True)
    opencl = opencl_check(TVM_EDGE_OPENCL_LIBRARY=str(library))
    assert "is no OpenCL 1.2 library" in opencl["found"]


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


def test_autoload_switched_off() -> None:
    opencl = opencl_check(TVM_DEVICE_BACKEND_AUTOLOAD="0")
    assert "TVM_DEVICE_BACKEND_AUTOLOAD" in opencl["found"]
