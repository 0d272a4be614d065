"""Networks as files."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tvm_edge
from tests.onnx_models import session
from tvm_edge import zoo
from tvm_edge.errors import InputError
from tvm_edge.frontend import read_model
from tvm_edge.zoo import models

OPTIONS: dict[str, Any] = {"image_size": 64, "width": 0.25, "seed": 3}


@pytest.fixture
def external(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the network were above the limit."""
    monkeypatch.setattr(models, "_EXTERNAL_ABOVE", 100_000)


def weights(model: onnx.ModelProto) -> dict[str, bytes]:
    return {w.name: numpy_helper.to_array(w).tobytes() for w in model.graph.initializer}


def run_file(path: Path) -> np.ndarray[Any, Any]:
    (logits,) = session(path).run(None, zoo.sample_input(onnx.load(path)))
    return np.asarray(logits)


def test_one_file_holds_what_build_builds(tmp_path: Path) -> None:
    path = zoo.save("squeezenet1_0", str(tmp_path / "s.onnx"), **OPTIONS)
    assert path == tmp_path / "s.onnx"
    assert os.listdir(tmp_path) == ["s.onnx"]
    assert onnx.load(path) == zoo.build("squeezenet1_0", **OPTIONS)


@pytest.mark.usefixtures("external")
def test_many_weights_go_beside_the_model(tmp_path: Path) -> None:
    path = zoo.save("squeezenet1_0", tmp_path / "s.onnx", **OPTIONS)
    assert sorted(os.listdir(tmp_path)) == ["s.onnx", "s.onnx.data"]
    assert path.stat().st_size < (tmp_path / "s.onnx.data").stat().st_size
    onnx.checker.check_model(str(path), full_check=True)
    built = zoo.build("squeezenet1_0", **OPTIONS)
    assert weights(read_model(path)) == weights(built)
    # Moved together, they still belong together.
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("s.onnx", "s.onnx.data"):
        (tmp_path / name).rename(moved / name)
    got = tvm_edge.compile(moved / "s.onnx", "llvm").run(zoo.sample_input(built))["logits"]
    np.testing.assert_allclose(run_file(moved / "s.onnx"), got, atol=1e-4)


@pytest.mark.usefixtures("external")
def test_an_older_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s.onnx"
    zoo.save("squeezenet1_0", path, **OPTIONS)
    before = run_file(path)
    zoo.save("squeezenet1_0", path, **{**OPTIONS, "seed": 4})
    assert sorted(os.listdir(tmp_path)) == ["s.onnx", "s.onnx.data"]
    assert np.abs(run_file(path) - before).max() > 0.1


def test_files_have_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    path = zoo.save("squeezenet1_0", tmp_path / "s.onnx", **OPTIONS)
    (tmp_path / "other").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


@pytest.mark.parametrize("where", ["absent/s.onnx", "file/s.onnx", "folder", "a\0b.onnx"])
def test_a_path_that_cannot_be_written(where: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot write the network to") as caught:
        zoo.save("squeezenet1_0", tmp_path / where, **OPTIONS)
    assert caught.value.name == "path"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert not os.listdir(tmp_path / "folder")


@pytest.fixture
def little_space() -> Iterator[None]:
    """No file may grow above 100 kB, which fails a write as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("external")
def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo.save("squeezenet1_0", tmp_path / "s.onnx", **OPTIONS)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    request.getfixturevalue("little_space")
    for limit in (100_000, 10**9):  # two files, and one
        monkeypatch.setattr(models, "_EXTERNAL_ABOVE", limit)
        with pytest.raises(InputError, match="File too large"):
            zoo.save("squeezenet1_0", tmp_path / "s.onnx", **{**OPTIONS, "seed": 4})
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_wrong_option_is_refused_as_by_build(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^the zoo has no network"):
        zoo.save("mobilenet_v9", tmp_path / "s.onnx")
    with pytest.raises(InputError, match=r"^width must"):
        zoo.save("mobilenet_v2", tmp_path / "s.onnx", width=0)
    assert not os.listdir(tmp_path)
