"""``tvm-edge``: the entry point, its exit codes and what all commands share."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from tvm_edge._version import __version__
from tvm_edge.cli.printing import plain_warnings
from tvm_edge.errors import TvmEdgeError, one_line
from tvm_edge.interrupts import on_second_interrupt

__all__ = ["cli", "main"]

_INTERNAL, _OUT_OF_MEMORY, _INTERRUPTED = 1, 4, 130

# Command → module; a module is imported when its command runs, so that --help is instant.
_COMMANDS = {
    "compile": ("Compile a model to an artifact.", "compile"),
    "run": ("Run a model or artifact on inputs from an .npz file.", "run"),
    "bench": ("Measure the latency of a model or artifact.", "bench"),
    "profile": ("Measure each kernel of a model or artifact.", "bench"),
    "analyze": ("Say what a model takes and what would run where.", "analyze"),
    "bundle": ("Write a folder that runs an artifact without Python.", "bundle"),
    "cmake-dir": ("Say where find_package(tvm_edge) looks.", "bundle"),
    "compare": ("Find the node at which a compiled model goes wrong.", "compare"),
    "quantize": ("Quantise a model to int8 and say what it costs.", "quantize"),
    "tune": ("Find the fastest kernels of a model and keep them as records.", "tune"),
    "db": ("List, show, check, merge and carry tuning records.", "db"),
    "cache": ("Show or clear the kernels that compilations have built.", "cache"),
    "rpc-server": ("Serve this board to tvm-edge on other machines.", "rpc_server"),
    "devices": ("List the devices of this machine or a board.", "machine"),
    "doctor": ("Check the installation and say what mends it.", "machine"),
}


class _LazyGroup(click.Group):
    """A group whose commands are imported when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        _, module = _COMMANDS[cmd_name]
        command: click.Command = getattr(
            importlib.import_module(f"tvm_edge.cli.{module}"),
            f"{cmd_name.replace('-', '_')}_command",
        )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (text, _) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tvm-edge")
@click.option("-v", "--verbose", count=True, help="Log what happens; twice for debugging output.")
def cli(verbose: int) -> None:
    """Compile CNNs for edge GPUs and CPUs, and run them.

    A MODEL is the path of an ONNX file or zoo:NAME; an ARTIFACT is a .tvme file.

    Exit status: 0 done, 1 internal error, 2 usage, 4 wrong model, input or artifact,
    5 missing dependency or device, 130 interrupted.
    """
    if verbose:
        logging.basicConfig(format="%(name)s: %(message)s", stream=sys.stderr)
        level = logging.INFO if verbose == 1 else logging.DEBUG
        logging.getLogger("tvm_edge").setLevel(level)


def _usage(err: click.UsageError) -> str:
    """A line that says what is wrong with a command line, and which help to ask for."""
    if err.format_message().startswith("Usage: "):  # of a group alone click shows the help
        return err.format_message()
    said = one_line(ValueError(err.format_message()), limit=1000).rstrip(".")
    command = err.ctx.command_path if err.ctx else "tvm-edge"
    return f"error: {said[:1].lower()}{said[1:]}; see {command} --help"


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line and exit the process with its status."""
    try:
        with _interrupts_noted() as interrupted:
            status = _run(arguments, interrupted)
    except KeyboardInterrupt:
        status = _INTERRUPTED
    if status == _INTERRUPTED:
        click.echo("interrupted", err=True)
    if status:
        sys.exit(status)


@contextmanager
def _interrupts_noted() -> Iterator[Callable[[], bool]]:
    """Remember that Ctrl-C came, and end the process at a second one; yields whether it came.

    ``KeyboardInterrupt`` alone may be lost: a finaliser cannot raise, and libraries turn it into
    other errors.
    """
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            _end_now()
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, as of a job in the background
        yield lambda: False
        return
    on_second_interrupt(_end_now)
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, before)
        on_second_interrupt(None)


def _end_now() -> None:
    """End without waiting for what the first Ctrl-C waits for, a pass in TVM's C++ say."""
    show_cursor = b"\x1b[?25h" if sys.stderr.isatty() else b""  # a spinner had hidden it
    os.write(2, show_cursor + b"interrupted\n")
    os._exit(_INTERRUPTED)


def _run(arguments: list[str] | None, interrupted: Callable[[], bool]) -> int:
    """Run a command; return its exit status, or what happened in place of it if Ctrl-C came."""
    status, message = 0, ""
    try:
        with plain_warnings():
            cli.main(args=arguments, prog_name="tvm-edge", standalone_mode=False)
    except click.Abort:
        return _INTERRUPTED
    except click.UsageError as err:
        status, message = err.exit_code, _usage(err)
    except TvmEdgeError as err:
        status, message = err.exit_code, f"error: {err}"
    except MemoryError as err:
        status = _OUT_OF_MEMORY
        reason = f" ({err})" if str(err) else ""
        message = f"error: out of memory{reason}; raise the limit, or give a smaller model"
    except Exception as err:  # a bug: say so, and show where when asked
        verbose = logging.getLogger("tvm_edge").isEnabledFor(logging.INFO)
        if verbose:
            logging.getLogger("tvm_edge").exception("internal error")
        advice = "" if verbose else "; run again with -v and report the traceback"
        message = f"internal error: {type(err).__name__}: {err}{advice}"
        status = _INTERNAL
    if interrupted():
        return _INTERRUPTED
    if message:
        click.echo(message, err=True)
    return status
