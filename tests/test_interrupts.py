"""Ctrl-C ends compile, tune, load, export and analyze in KeyboardInterrupt, between two steps."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import tvm_edge
from tests.cli.conftest import Invoke, invoke  # noqa: F401 - a fixture
from tvm_edge.interrupts import hold_interrupts, raise_pending_interrupt


def control_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Interrupting(os.PathLike[str]):
    """A path at which somebody presses Ctrl-C as it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        control_c()
        return str(self.path)


@pytest.fixture(scope="module")
def model_file(small_model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("interrupts") / "small.onnx"
    onnx.save(small_model, path)
    return path


CALLS: dict[str, Callable[[os.PathLike[str], Path], object]] = {
    "compile": lambda path, folder: tvm_edge.compile(path, "llvm"),
    "analyze": lambda path, folder: tvm_edge.analyze(path, "llvm"),
    "tune": lambda path, folder: tvm_edge.tune(path, "llvm", trials=1, tuning_logs=folder),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_and_leaves_nothing_running(
    model_file: Path, tmp_path: Path, name: str
) -> None:
    """A compiler's thread that went on would be inside TVM's C++ when the process ends."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        CALLS[name](Interrupting(model_file), tmp_path)
    assert not [t for t in threading.enumerate() if t.name == "tvm_edge compiler"]
    assert signal.getsignal(signal.SIGINT) is before


def test_load_is_interrupted(compiled_small: tvm_edge.CompiledModel, tmp_path: Path) -> None:
    path = compiled_small.export(tmp_path / "model.tvme")
    with pytest.raises(KeyboardInterrupt):
        tvm_edge.load(Interrupting(path))


def test_export_is_interrupted_while_the_linker_fails_of_it(
    compiled_small: tvm_edge.CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal sends Ctrl-C to both; that the linker ended is not what happened."""
    linker = tmp_path / "g++"
    linker.write_text("#!/bin/sh\nkill -INT $PPID\nexit 1\n")
    linker.chmod(0o755)
    monkeypatch.setenv("CXX", str(linker))
    path = tmp_path / "model.tvme"
    path.write_bytes(b"the old artifact")
    with pytest.raises(KeyboardInterrupt):
        compiled_small.export(path)
    assert path.read_bytes() == b"the old artifact"
    assert sorted(tmp_path.iterdir()) == [linker, path]


def test_it_is_not_lost_in_a_finaliser() -> None:
    class Swallows:
        def __del__(self) -> None:
            control_c()

    with pytest.raises(KeyboardInterrupt), hold_interrupts():
        swallows = Swallows()
        del swallows


def test_it_is_raised_in_the_holders_context_alone() -> None:
    """Another thread's compilation is not what the main thread's Ctrl-C is for."""
    failed: list[BaseException] = []

    def other() -> None:
        try:
            raise_pending_interrupt()
        except BaseException as err:
            failed.append(err)

    with pytest.raises(KeyboardInterrupt), hold_interrupts():
        control_c()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert not failed
        with hold_interrupts():  # an inner one leaves it to the outer one
            pass
        raise_pending_interrupt()
        pytest.fail("it was not raised")


def test_a_handler_of_the_callers_is_asked(model_file: Path) -> None:
    """One that only notes Ctrl-C, as asyncio's, does not end a compilation."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        tvm_edge.analyze(Interrupting(model_file), "llvm")
    finally:
        signal.signal(signal.SIGINT, before)
    assert set(came) == {signal.SIGINT}


def test_the_command_says_interrupted_whatever_it_became(
    invoke: Invoke,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As TVM makes an empty RuntimeError of it, which was reported as a bug."""

    def fail(*_arguments: object, **_options: object) -> None:
        try:
            control_c()
        except KeyboardInterrupt:
            raise RuntimeError from None

    monkeypatch.setattr("tvm_edge.load", fail)
    outcome = invoke("bench", "model.tvme")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "interrupted\n")
