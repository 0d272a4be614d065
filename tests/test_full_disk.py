"""Whatever is written: where space ends, at each step of the file, the old file stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tvm_edge
from tests.mounts import Mount, leave_free
from tests.onnx_models import conv_relu
from tests.records.made import record
from tests.runtime.support import run_python
from tvm_edge.cli.run import _write as write_outputs
from tvm_edge.records import Database, write_lines
from tvm_edge.workflow import Quantized
from tvm_edge.workflow.dump_part import dump_part
from tvm_edge.workflow.node_groups import Part

STEP = 4096
OLD = b"what was there"

Write = Callable[[Path], object]


@pytest.fixture
def small_disk(tmp_path: Path, mount_tmpfs: Mount) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount_tmpfs(folder, "size=4m")
    return folder


def fails_until_there_is_space(folder: Path, name: str, write: Write) -> int:
    """Write with more and more space; returns how many times it was refused."""
    path = folder / name
    path.write_bytes(OLD)
    for refused in range(500):
        leave_free(folder, refused * STEP)
        try:
            write(path)
        except (tvm_edge.TvmEdgeError, OSError) as err:
            assert "No space left" in str(err)
            assert path.read_bytes() == OLD
            assert {each.name for each in folder.iterdir()} == {name, "filler"}
        else:
            assert path.read_bytes() != OLD
            return refused
    raise AssertionError("it never had enough")


def test_an_artifact(compiled_small: tvm_edge.CompiledModel, small_disk: Path) -> None:
    loaded = tvm_edge.load(compiled_small.export(small_disk.parent / "model.tvme"))
    count = fails_until_there_is_space(small_disk, "model.tvme", loaded.export)
    size = (small_disk / "model.tvme").stat().st_size
    assert count == -(-size // STEP)
    tvm_edge.load(small_disk / "model.tvme")


def test_a_page(compiled_small: tvm_edge.CompiledModel, small_disk: Path) -> None:
    assert fails_until_there_is_space(small_disk, "page.html", compiled_small.report.to_html) > 5


def test_a_timeline(compiled_small: tvm_edge.CompiledModel, small_disk: Path) -> None:
    profile = compiled_small.profile(repeat=1)
    assert fails_until_there_is_space(small_disk, "trace.json", profile.to_chrome_trace) == 1
    assert json.loads((small_disk / "trace.json").read_text())["traceEvents"]


def test_outputs(small_disk: Path) -> None:
    arrays = {"y": np.arange(8192, dtype="float32")}
    count = fails_until_there_is_space(
        small_disk, "outputs.npz", lambda path: write_outputs(path, arrays)
    )
    assert count == 9  # 32 KiB and the headers
    np.testing.assert_array_equal(np.load(small_disk / "outputs.npz")["y"], arrays["y"])


def test_records(small_disk: Path) -> None:
    records = [record(number) for number in range(20)]
    assert fails_until_there_is_space(
        small_disk, "device.jsonl", lambda path: write_lines(path, records)
    )


def test_a_quantised_model(small_disk: Path) -> None:
    found = Quantized(conv_relu(), "minmax", 1, 0.0, (), ())
    assert fails_until_there_is_space(small_disk, "int8.onnx", found.save) > 0


def test_a_dumped_part(small_disk: Path) -> None:
    part = Part(conv_relu(), {"x": np.zeros(4096, "float32")}, {"y": "y"})
    expected = {"y": np.zeros(8, "float32")}
    leave_free(small_disk, STEP)
    with pytest.raises(tvm_edge.InputError, match="No space left on device; choose another fol"):
        dump_part(small_disk, "node", part, expected)
    assert {each.name for each in small_disk.iterdir()} == {"filler"}


EXPORTS = """
import sys, tempfile
from pathlib import Path
import tvm_edge
from tests.mounts import leave_free
from tests.onnx_models import conv_relu

tempfile.tempdir = sys.argv[1]
model = tvm_edge.compile(conv_relu(), "llvm")
target = Path(sys.argv[2])
for refused in range(200):
    leave_free(Path(sys.argv[1]), refused * 4096)
    try:
        model.export(target)
    except tvm_edge.ArtifactError as err:
        assert target.read_bytes() == b"what was there", "the old file is gone"
        assert "temporary folder" in str(err), err
    else:
        break
    assert [each.name for each in Path(sys.argv[1]).iterdir()] == ["filler"]
print(refused)
"""


def test_a_full_temporary_folder(small_disk: Path, tmp_path: Path) -> None:
    """LLVM ends the process where an object file cannot grow."""
    target = tmp_path / "model.tvme"
    target.write_bytes(OLD)
    assert int(run_python(EXPORTS, small_disk, target)) > 3
    tvm_edge.load(target)


def test_a_database(small_disk: Path) -> None:
    """All of a batch or nothing, and what was committed before stays."""
    path = small_disk / "device.sqlite3"
    old, new = [record(number) for number in range(5)], [record(number) for number in range(5, 60)]
    with Database(path) as database:
        database.add(old)
    for refused in range(200):
        leave_free(small_disk, refused * STEP)
        try:
            with Database(path) as database:
                database.add(new)
        except tvm_edge.RecordError as err:
            assert str(path) in str(err)
        else:
            break
        finally:
            (small_disk / "filler").unlink()
        with Database(path) as database:
            assert set(database.all()[0]) == set(old) and not database.damages()
    assert refused > 5
    with Database(path) as database:
        assert set(database.all()[0]) == {*old, *new}
