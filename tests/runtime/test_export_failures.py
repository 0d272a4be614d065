"""An export that cannot be done says why, leaves nothing behind and harms nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_edge
from tests.mounts import Mount
from tests.runtime.support import run_python
from tvm_edge import ArtifactError, MissingDependencyError


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process makes temporary files; a test looks whether any stayed."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def refused(model: tvm_edge.CompiledModel, path: Path, *fragments: str) -> None:
    """Export to `path` and check that the error names it and what happened."""
    with pytest.raises(ArtifactError) as caught:
        model.export(path)
    for fragment in (str(path), *fragments):
        assert fragment in str(caught.value)


def test_export_replaces_an_existing_file(
    small_model: onnx.ModelProto, image: np.ndarray, optimised: None, tmp_path: Path
) -> None:
    """By the same bytes after a run as before; LLVM's code without optimisation differs there."""
    model = tvm_edge.compile(small_model, "llvm")
    before = model.export(tmp_path / "before.tvme").read_bytes()
    model.run({"data": image})
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "model.tvme"
    path.write_bytes(b"something else")
    assert model.export(path) == path
    assert path.read_bytes() == before
    assert list(folder.iterdir()) == [path]


def test_a_model_may_be_exported_over_its_own_file(
    artifact: Path, image: np.ndarray, tmp_path: Path
) -> None:
    path = tmp_path / "model.tvme"
    path.write_bytes(artifact.read_bytes())
    model = tvm_edge.load(path)
    before = model.run({"data": image})["pooled"]
    model.export(path)
    np.testing.assert_array_equal(model.run({"data": image})["pooled"], before)
    np.testing.assert_array_equal(tvm_edge.load(path).run({"data": image})["pooled"], before)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/null", path)])
def test_what_is_no_regular_file_is_not_replaced(
    compiled_small: tvm_edge.CompiledModel, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """As root it replaced a device; a FIFO that nobody reads would wait for ever."""
    path = tmp_path / "model.tvme"
    make(path)
    before = path.lstat()
    refused(compiled_small, path, "regular file")
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_file_is_replaced(
    compiled_small: tvm_edge.CompiledModel, tmp_path: Path
) -> None:
    real, link = tmp_path / "real.tvme", tmp_path / "link.tvme"
    real.write_bytes(b"the old artifact")
    link.symlink_to(real)
    compiled_small.export(link)
    assert link.is_symlink() and tvm_edge.load(real).outputs == compiled_small.outputs


def test_a_long_file_name(compiled_small: tvm_edge.CompiledModel, tmp_path: Path) -> None:
    """255 bytes are what Linux allows; the temporary file must not need more."""
    path = compiled_small.export(tmp_path / ("n" * 250 + ".tvme"))
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_name_too_long(compiled_small: tvm_edge.CompiledModel, tmp_path: Path) -> None:
    refused(compiled_small, tmp_path / ("n" * 260 + ".tvme"), "too long")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder(
    compiled_small: tvm_edge.CompiledModel, tmp_path: Path, scratch: Path
) -> None:
    refused(compiled_small, tmp_path / "absent" / "model.tvme", "No such file", "folder")
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "absent").exists()


def test_a_file_where_the_folder_should_be(
    compiled_small: tvm_edge.CompiledModel, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("text")
    refused(compiled_small, tmp_path / "file" / "model.tvme", "Not a directory")
    assert (tmp_path / "file").read_text() == "text"


def test_a_folder_where_the_file_should_be(
    compiled_small: tvm_edge.CompiledModel, tmp_path: Path
) -> None:
    (tmp_path / "model.tvme").mkdir()
    refused(compiled_small, tmp_path / "model.tvme", "directory")
    assert [path.name for path in tmp_path.iterdir()] == ["model.tvme"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission(
    compiled_small: tvm_edge.CompiledModel, tmp_path: Path
) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    refused(compiled_small, folder / "model.tvme", "Permission denied")
    assert list(folder.iterdir()) == []


def test_a_read_only_file_system(
    compiled_small: tvm_edge.CompiledModel, tmp_path: Path, mount_tmpfs: Mount
) -> None:
    mount_tmpfs(tmp_path, "ro")
    refused(compiled_small, tmp_path / "model.tvme", "Read-only")


def test_a_full_disk(
    compiled_small: tvm_edge.CompiledModel,
    artifact: Path,
    image: np.ndarray,
    tmp_path: Path,
    scratch: Path,
    mount_tmpfs: Mount,
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mount_tmpfs(folder, f"size={artifact.stat().st_size * 3 // 2}")
    path = compiled_small.export(folder / "model.tvme")
    refused(compiled_small, path, "No space left")
    refused(compiled_small, folder / "second.tvme", "No space left")
    assert list(folder.iterdir()) == [path]
    assert list(scratch.iterdir()) == []
    np.testing.assert_array_equal(
        tvm_edge.load(path).run({"data": image})["pooled"],
        compiled_small.run({"data": image})["pooled"],
    )


LIMITED = """
import resource, sys, tempfile
import tvm_edge

artifact, target, limit, tempfile.tempdir = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
model = tvm_edge.load(artifact)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
for attempt in (lambda: model.export(target), lambda: tvm_edge.load(artifact)):
    try:
        attempt()
        print("done")
    except tvm_edge.ArtifactError as err:
        print(err)
"""


@pytest.mark.parametrize("portion", [0.05, 0.95])
def test_a_limit_on_file_sizes(artifact: Path, tmp_path: Path, portion: float) -> None:
    """Neither the library's temporary file nor the artifact may grow; what was there stays."""
    target, scratch = tmp_path / "model.tvme", tmp_path / "temporary"
    scratch.mkdir()
    target.write_bytes(b"the old artifact")
    limit = int(artifact.stat().st_size * portion)
    exported, loaded = run_python(
        LIMITED,
        artifact,
        target,
        limit,
        scratch,
        environment={"TVM_USE_RUNTIME_LIB": "1"},
    ).splitlines()
    assert str(target) in exported and "File too large" in exported
    assert ("ulimit -f" in loaded) if portion < 0.5 else (loaded == "done")
    assert target.read_bytes() == b"the old artifact"
    assert sorted(tmp_path.iterdir()) == [target, scratch]
    assert list(scratch.iterdir()) == []


def test_no_compiler(
    compiled_small: tvm_edge.CompiledModel,
    tmp_path: Path,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(scratch))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(MissingDependencyError, match=r"apt-get install g\+\+") as caught:
        compiled_small.export(tmp_path / "model.tvme")
    assert caught.value.exit_code == 5
    assert list(tmp_path.iterdir()) == [scratch]
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("compiler", ["/bin/false", "/nonexistent/g++"])
def test_a_broken_linker(
    compiled_small: tvm_edge.CompiledModel,
    tmp_path: Path,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    compiler: str,
) -> None:
    """The message is about the compiler, not about the folder of the artifact."""
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises((ArtifactError, MissingDependencyError), match="check the compiler"):
        compiled_small.export(tmp_path / "model.tvme")
    assert list(tmp_path.iterdir()) == [scratch]
    assert list(scratch.iterdir()) == []


def test_a_loaded_model_needs_no_compiler(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    path = tvm_edge.load(artifact).export(tmp_path / "again.tvme")
    assert path.read_bytes() == artifact.read_bytes()
