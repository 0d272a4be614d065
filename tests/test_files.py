"""Temporary files and folders carry their process, and go with it or at the next start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.support import child_environment
from tvm_edge import files
from tvm_edge.errors import ArtifactError, InputError
from tvm_edge.files import own_name, remove_leftovers, temporary_folder, whole_file, writing

KILLED = """
import sys, time
from pathlib import Path
from tvm_edge.files import temporary_folder, whole_file
with temporary_folder("tune") as folder, whole_file(Path(sys.argv[1])) as file:
    (folder / "candidate.so").write_bytes(b"code")
    file.write(b"half")
    file.flush()
    print("written", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def killed(temporary: Path, target: Path) -> int:
    """Process that was killed while it wrote."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(target)],
        env=child_environment({"TMPDIR": str(temporary)}),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    return process.pid


def test_what_a_killed_process_left_goes_at_the_next_start(temporary: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.tvme"
    target.write_bytes(b"the old one")
    killed(temporary, target)
    assert len(list(temporary.iterdir())) == 1 and target.read_bytes() == b"the old one"
    files._swept.clear()  # as in a new process
    with temporary_folder("tune") as folder:
        assert list(temporary.iterdir()) == [folder]
    with whole_file(target) as file:
        file.write(b"the new one")
    assert target.read_bytes() == b"the new one"
    assert sorted(tmp_path.iterdir()) == [target, temporary]


def test_what_lives_or_is_somebody_elses_stays(temporary: Path) -> None:
    """A process id alone is soon another's; and a link leads anywhere."""
    mine = own_name("tune")
    *head, boot, namespace, process, start, tail = mine.split("-")

    def named(*parts: str) -> Path:
        return temporary / "-".join((*head, *parts, tail))

    live = temporary / mine
    elsewhere = named(boot, "1", "999999999", start)
    other_boot = named("0" * 8, namespace, "999999999", start)
    dead = named(boot, namespace, "999999999", start)
    reused = named(boot, namespace, process, str(int(start) + 1))
    precious = temporary / "precious"
    unrelated = temporary / "tvm-edge-device-cpu.lock"
    for path in (live, elsewhere, other_boot, dead, reused, precious):
        path.mkdir()
        (path / "file").write_bytes(b"content")
    unrelated.write_bytes(b"")
    link = named(boot, namespace, "999999998", start)
    link.symlink_to(precious)
    kept = {live, elsewhere, other_boot, precious, unrelated}
    if os.geteuid() == 0:
        foreign = named(boot, namespace, "999999997", start)
        foreign.mkdir()
        os.chown(foreign, 1, 1)
        kept.add(foreign)
    remove_leftovers(temporary)
    assert set(temporary.iterdir()) == kept
    assert (precious / "file").exists()
    os.utime(other_boot, (1_000_000_000, 1_000_000_000))  # nobody's for a day
    remove_leftovers(temporary)
    assert not other_boot.exists()


def test_a_block_that_raises_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), whole_file(target) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert target.read_bytes() == b"old" and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("path", ["missing/x", "a\0b", "."])
def test_an_error_of_ours_names_what_cannot_be_written(tmp_path: Path, path: str) -> None:
    target = tmp_path / path
    with pytest.raises(InputError, match=r"^cannot write the page to '.*; choose another path$"):
        with writing(target, "the page to"), whole_file(target) as file:
            file.write(b"new")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_error_of_ours() -> None:
    with pytest.raises(ArtifactError, match="No space left on device; make room"):
        with (
            writing(Path("/dev/full"), error=ArtifactError, advice="make room"),
            whole_file(Path("/dev/full"), streams=True) as file,
        ):
            file.write(b"new")


def test_errors_of_values_are_no_errors_of_writing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"), writing(tmp_path / "x"):
        raise ValueError("mine")
