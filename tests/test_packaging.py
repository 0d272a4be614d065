"""Every module has one name, however the package is installed."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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


def test_wheel_and_sdist(tmp_path: Path) -> None:
    """Both hold the linked folders' files, the wheel under ``tvm_edge`` alone."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {"tvm_edge"}
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        sources = {"/".join(name.split("/")[1:]) for name in archive.getnames()}
    for file in ("schedules/cpu/conv2d.py", "relay_passes/vision.py"):
        assert f"tvm_edge/{file}" in names
        assert file in sources
    for file in ("page.html.j2", "macros.html.j2", "drawings.html.j2", "style.css", "script.js"):
        assert f"tvm_edge/report/page/{file}" in names
    detector = "tvm_edge/zoo/data/shapes_ssd.onnx"
    assert detector in names and detector in sources
