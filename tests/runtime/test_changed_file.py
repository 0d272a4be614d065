"""An artifact that somebody writes to: what was checked is what runs, or an error says so."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tvm_edge
from tests.marks import in_full
from tests.runtime.support import run_python
from tvm_edge import ArtifactError
from tvm_edge.runtime.artifact import read_artifact


@pytest.fixture
def path(artifact: Path, tmp_path: Path) -> Path:
    return Path(tmp_path / "model.tvme").write_bytes(artifact.read_bytes()) and (
        tmp_path / "model.tvme"
    )


def weight_at(path: Path) -> int:
    """Place of a byte of the first weight in the file."""
    with zipfile.ZipFile(path) as archive:
        begin = path.read_bytes().index(archive.read("weights.bin"))
        return begin + int(json.loads(archive.read("manifest.json"))["weights"][0]["offset"])


def write_in_place(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place + 3)
        byte = file.read(1)
        file.seek(place + 3)
        file.write(bytes([byte[0] ^ 0x40]))


def test_a_write_in_place_ends_runs(path: Path, image: np.ndarray) -> None:
    """Weights are mapped: without the check the next results are silently wrong."""
    place = weight_at(path)
    model = tvm_edge.load(path)
    model.run({"data": image})
    write_in_place(path, place)
    for _ in range(2):
        with pytest.raises(ArtifactError, match="was written to while it was in use") as caught:
            model.run({"data": image})
        assert str(path) in str(caught.value) and "copy=True" in str(caught.value)
    with pytest.raises(ArtifactError, match="was written to"):
        model.export(path.with_name("again.tvme"))
    assert list(path.parent.iterdir()) == [path]


def test_a_copy_is_the_models_own(path: Path, image: np.ndarray) -> None:
    place = weight_at(path)
    model = tvm_edge.load(path, copy=True)
    expected = model.run({"data": image})["pooled"]
    before = path.read_bytes()
    write_in_place(path, place)
    np.testing.assert_array_equal(model.run({"data": image})["pooled"], expected)
    path.unlink()
    assert model.export(path).read_bytes() == before


def test_another_file_in_its_place_changes_nothing(path: Path, image: np.ndarray) -> None:
    model = tvm_edge.load(path)
    expected = model.run({"data": image})["pooled"]
    other = path.with_name("other")
    other.write_bytes(b"another version")
    other.replace(path)
    np.testing.assert_array_equal(model.run({"data": image})["pooled"], expected)


def test_a_write_within_a_tick_of_the_last_one_is_noticed(path: Path) -> None:
    """The time of a file has the kernel's tick: load waits for the next one."""
    place = weight_at(path)
    path.write_bytes(path.read_bytes())
    opened = read_artifact(path)
    write_in_place(path, place)
    with pytest.raises(ArtifactError, match="was written to"):
        opened.check()


LOADS = """
import os, sys, threading
import numpy as np
import tvm_edge

path = sys.argv[1]
image = np.load(sys.argv[2])
expected = tvm_edge.load(path, copy=True).run({"data": image})["pooled"]
content = open(path, "rb").read()
ended = threading.Event()

def write():
    random = np.random.default_rng(0)
    file = os.open(path, os.O_WRONLY)
    while not ended.is_set():
        places = random.integers(0, len(content), 64)
        for place in places:
            os.pwrite(file, bytes([content[place] ^ 255]), place)
        for place in places:
            os.pwrite(file, content[place : place + 1], place)
        # A load begins where nobody wrote for 20 ms, and half of them see a write later on.
        ended.wait(random.exponential(0.005))

writer = threading.Thread(target=write, daemon=True)  # an error ends the process
writer.start()
refused = 0
for _ in range(int(sys.argv[3])):
    try:
        found = tvm_edge.load(path, copy=len(sys.argv) > 4).run({"data": image})["pooled"]
        assert np.array_equal(found, expected), "wrong"
    except tvm_edge.ArtifactError:
        refused += 1
ended.set()
writer.join()
print(refused)
"""


@pytest.fixture
def image_file(image: np.ndarray, tmp_path: Path) -> Iterator[Path]:
    np.save(tmp_path / "image.npy", image)
    yield tmp_path / "image.npy"


def test_damage_that_is_no_text_is_named(artifact: Path, tmp_path: Path) -> None:
    """A message that quotes it can be decoded."""
    path = tmp_path / "damaged.tvme"
    with zipfile.ZipFile(artifact) as source, zipfile.ZipFile(path, "w") as target:
        for info in source.infolist():
            data = source.read(info)
            damaged = info.filename == "manifest.json"
            target.writestr(info, data.replace(b"llvm", b"ll\x96vm", 1) if damaged else data)
    with pytest.raises(ArtifactError, match=r"'ll\\x96vm' is no kind of device"):
        tvm_edge.load(path)


@pytest.mark.parametrize("loads", [12, *in_full(100)])
@pytest.mark.parametrize("options", [[], ["copy"]], ids=["mapped", "copied"])
def test_loads_while_somebody_writes(
    path: Path, image_file: Path, options: list[str], loads: int
) -> None:
    """Wrong results and faults of code that was read after it was checked."""
    environment = {"TVM_USE_RUNTIME_LIB": "1", "TVM_NUM_THREADS": "1"}
    arguments = (path, image_file, loads, *options)
    assert 0 < int(run_python(LOADS, *arguments, environment=environment)) < loads
