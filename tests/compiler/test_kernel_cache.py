"""The cache of built kernels: what is taken from it, and whatever may be wrong with it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_edge
from tests.onnx_models import conv_relu
from tests.runtime.support import child_environment
from tvm_edge import InputError
from tvm_edge.compiler import kernel_objects
from tvm_edge.lowering import kernel_cache
from tvm_edge.lowering.kernel_cache import KernelCache, open_cache

NAME, CONTENT = "ab" * 32, b"object code" * 100
MEBIBYTE = 1 << 20
NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("TVM_EDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def in_folder(folder: Path) -> KernelCache:
    return KernelCache(folder, MEBIBYTE)


def entry_of(folder: Path) -> Path:
    (path,) = folder.glob("*.kernel")
    return path


def compiled(model: onnx.ModelProto, **options: object) -> tuple[tvm_edge.CompiledModel, int]:
    """A model, and how many of its kernels were in the cache."""
    made = tvm_edge.compile(model, "llvm", **options)
    return made, made._library.kernels.cached


def test_the_next_compilation_builds_nothing(
    folder: Path, small_model: onnx.ModelProto, image: np.ndarray
) -> None:
    first, before = compiled(small_model)
    second, after = compiled(small_model)
    kernels = len(first._library.kernels.objects)
    assert (before, after) == (0, kernels) and kernels > 0
    assert first._library.kernels.objects == second._library.kernels.objects
    (one,), (other,) = (list(m.run({"data": image}).values()) for m in (first, second))
    assert np.array_equal(one, other)


def test_what_it_depends_on_is_in_the_name(
    folder: Path, small_model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(small_model)
    assert tvm_edge.compile(small_model, {"kind": "llvm", "mcpu": "x86-64-v3"})._library
    known = len(list(folder.glob("*.kernel")))
    optimised = kernel_objects.optimised
    monkeypatch.setattr(
        kernel_objects,
        "optimised",
        lambda target, func: type(target)({**optimised(target, func).export(), "opt-level": 3}),
    )
    assert compiled(small_model)[1] == 0, "another level of LLVM"
    assert len(list(folder.glob("*.kernel"))) > known
    monkeypatch.setattr(kernel_cache, "_builder", lambda _: ["another version"])
    assert compiled(small_model)[1] == 0, "another version"


def test_kernels_are_shared_where_an_option_changes(folder: Path) -> None:
    model = conv_relu()
    compiled(model)
    assert compiled(model, tuning_logs=False, num_threads=1)[1] > 0


def test_it_is_off(small_model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_EDGE_CACHE", "0")
    assert open_cache() is None
    assert [compiled(small_model)[1] for _ in range(2)] == [0, 0]


def test_a_size_that_is_no_number(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_EDGE_CACHE_SIZE", "much")
    with pytest.raises(InputError, match=r"TVM_EDGE_CACHE_SIZE.*'much'"):
        open_cache()


def test_files_are_this_users_alone(folder: Path) -> None:
    cache = in_folder(folder)
    cache.put(NAME, CONTENT)
    assert cache.get(NAME) == CONTENT
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {f"{NAME}.kernel": 0o600, "key": 0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def sign_with_another_key(path: Path) -> None:
    other = in_folder(path.parent / "other")
    other.put(NAME, b"code of somebody else")
    path.write_bytes(entry_of(other.folder).read_bytes())


def link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def for_all(path: Path) -> None:
    path.chmod(0o666)


def of_another_entry(path: Path) -> None:
    in_folder(path.parent).put("cd" * 32, b"another kernel")
    (path.parent / f"{'cd' * 32}.kernel").rename(path)


@pytest.mark.parametrize(
    "spoil",
    [
        truncate,
        flip,
        empty,
        sign_with_another_key,
        link,
        fifo,
        directory,
        for_all,
        of_another_entry,
    ],
)
def test_what_is_wrong_costs_the_entry(folder: Path, spoil: Callable[[Path], None]) -> None:
    in_folder(folder).put(NAME, CONTENT)
    spoil(entry_of(folder))
    cache = in_folder(folder)
    assert cache.get(NAME) is None
    cache.put(NAME, CONTENT)  # a folder in its place stays; anything else is replaced
    assert cache.get(NAME) == (None if spoil is directory else CONTENT)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_another_user(folder: Path) -> None:
    in_folder(folder).put(NAME, CONTENT)
    os.chown(entry_of(folder), 12345, -1)
    assert in_folder(folder).get(NAME) is None
    os.chown(folder, 12345, -1)
    cache = in_folder(folder)
    cache.put("cd" * 32, CONTENT)
    assert len(list(folder.glob("*.kernel"))) == 1


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_may_write_is_not_used(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    cache = in_folder(folder)
    cache.put(NAME, CONTENT)
    assert cache.get(NAME) is None and not list(folder.iterdir())


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 1000])
def test_a_damaged_key_costs_the_entries(folder: Path, damage: bytes) -> None:
    in_folder(folder).put(NAME, CONTENT)
    (folder / "key").write_bytes(damage)
    cache = in_folder(folder)
    assert cache.get(NAME) is None
    cache.put(NAME, CONTENT)
    assert in_folder(folder).get(NAME) == CONTENT


def test_a_key_that_others_may_read_is_none(folder: Path) -> None:
    in_folder(folder).put(NAME, CONTENT)
    (folder / "key").chmod(0o644)
    assert in_folder(folder).get(NAME) is None


def test_a_file_where_the_folder_should_be(folder: Path, small_model: onnx.ModelProto) -> None:
    folder.write_text("no folder")
    assert compiled(small_model)[1] == 0
    assert folder.read_text() == "no folder"


def as_another_user(call: Callable[[], bool]) -> bool:
    """Call it in a child that is not root, for whom a folder can be read-only."""
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setuid(NOBODY)
            os._exit(0 if call() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_read_only_folder_is_read() -> None:
    with tempfile.TemporaryDirectory() as above:  # pytest's own is root's alone
        Path(above).chmod(0o755)
        folder = Path(above) / "cache"
        folder.mkdir()
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, -1)

        def use() -> bool:
            in_folder(folder).put(NAME, CONTENT)
            folder.chmod(0o500)
            cache = in_folder(folder)
            cache.put("cd" * 32, CONTENT)
            cache.trim()
            return cache.get(NAME) == CONTENT and cache.get("cd" * 32) is None

        assert as_another_user(use)
        folder.chmod(0o700)


def test_a_full_disk(folder: Path, small_model: onnx.ModelProto) -> None:
    """A file may be no longer than 64 KiB: writing fails as on a full disk, half way."""
    program = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from tvm_edge.lowering.kernel_cache import KernelCache
from pathlib import Path
cache = KernelCache(Path({str(folder)!r}), 1 << 20)
cache.put({NAME!r}, b"small")
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
cache.put({"cd" * 32!r}, bytes(1 << 20))
print(cache.get({NAME!r}), cache.get({"cd" * 32!r}))
"""
    command = [sys.executable, "-c", program]
    out = subprocess.check_output(command, env=child_environment({}), text=True)
    assert out.split() == ["b'small'", "None"]
    assert sorted(path.name for path in folder.iterdir()) == [f"{NAME}.kernel", "key"]


def test_the_oldest_go(folder: Path) -> None:
    cache = KernelCache(folder, 4000)
    names = [f"{number:02x}" * 32 for number in range(6)]
    for age, name in enumerate(names):
        cache.put(name, bytes(1000))
        os.utime(folder / f"{name}.kernel", (age, age))
    assert cache.get(names[0]) is not None  # used just now
    cache.trim()
    assert [name for name in names if cache.get(name) is not None] == [names[0], *names[-2:]]
    assert cache.state().nbytes <= cache.limit


def test_it_is_trimmed_now_and_then(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at all entries after each compilation would take longer than most of them."""
    trim, trims = KernelCache.trim, []
    monkeypatch.setattr(KernelCache, "trim", lambda cache: (trims.append(cache), trim(cache)))
    for number in range(64):
        cache = KernelCache(folder, 64_000)  # each compilation opens it
        cache.put(f"{number:02x}" * 32, bytes(1900))
        cache.make_room()
        assert cache.state().nbytes <= cache.limit
    assert 64 // 4 < len(trims) < 64 // 2
    assert cache.state().entries > 25


def test_what_a_killed_process_left_is_removed(folder: Path) -> None:
    cache = in_folder(folder)
    cache.put(NAME, CONTENT)
    for name, age in (("old", 0), ("new", None)):
        (folder / f".{name}.tmp").write_bytes(b"half")
        if age is not None:
            os.utime(folder / f".{name}.tmp", (age, age))
    cache.trim()
    assert [path.name for path in folder.glob(".*.tmp")] == [".new.tmp"]
    assert cache.get(NAME) == CONTENT


def _write(folder: str, writer: int, start: object, rounds: int) -> None:
    start.wait()  # type: ignore[attr-defined]
    cache = KernelCache(Path(folder), MEBIBYTE)
    for number in range(rounds):
        name = f"{number % 7:02x}" * 32
        cache.put(name, name.encode() * (1000 + writer))
        found = cache.get(name)
        assert found is None or found.startswith(name.encode()), found[:20]


def test_processes_beside_each_other(folder: Path) -> None:
    """They begin with no folder and no key, and end with one that all entries hold by."""
    context = get_context("spawn")
    start = context.Event()
    writers = [
        context.Process(target=_write, args=(str(folder), number, start, 40)) for number in range(3)
    ]
    for each in writers:
        each.start()
    start.set()
    for each in writers:
        each.join(60)
    assert [each.exitcode for each in writers] == [0, 0, 0]
    cache = in_folder(folder)
    assert all(cache.get(f"{number:02x}" * 32) is not None for number in range(7))


def test_a_process_that_is_killed_while_it_writes(folder: Path) -> None:
    context = get_context("spawn")
    start = context.Event()
    writer = context.Process(target=_write, args=(str(folder), 0, start, 10**9))
    writer.start()
    start.set()
    while not list(folder.glob("*.kernel")):
        assert writer.is_alive()
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join(60)
    cache = in_folder(folder)
    for number in range(7):
        name = f"{number:02x}" * 32
        assert cache.get(name) in (None, name.encode() * 1000)
        cache.put(name, CONTENT)
        assert cache.get(name) == CONTENT


def test_clear(folder: Path) -> None:
    cache = in_folder(folder)
    cache.put(NAME, CONTENT)
    (folder / "notes.txt").write_text("the user's own")
    assert cache.clear().entries == 1
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert cache.get(NAME) is None
    cache.put(NAME, CONTENT)
    assert cache.get(NAME) == CONTENT
