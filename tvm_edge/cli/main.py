"""``tvm-edge``: the entry point, its exit codes and what all commands share."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

import click

from tvm_edge._version import __version__
from tvm_edge.errors import TvmEdgeError

__all__ = ["cli", "main"]

_INTERNAL, _INTERRUPTED = 1, 130

# Command → module; a module is imported when its command runs, so that --help is instant.
_COMMANDS = {
    "compile": ("Compile a model to an artifact.", "compile"),
    "run": ("Run a model or artifact on inputs from an .npz file.", "run"),
    "bench": ("Measure the latency of a model or artifact.", "bench"),
    "profile": ("Measure each kernel of a model or artifact.", "bench"),
    "analyze": ("Say what a model takes and what would run where.", "analyze"),
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


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line and exit the process with its status."""
    try:
        cli.main(args=arguments, prog_name="tvm-edge", standalone_mode=False)
    except click.ClickException as err:
        err.show()
        sys.exit(err.exit_code)
    except TvmEdgeError as err:
        click.echo(f"error: {err}", err=True)
        sys.exit(err.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(_INTERRUPTED)
    except Exception as err:  # a bug: say so, and show where when asked
        verbose = logging.getLogger("tvm_edge").isEnabledFor(logging.INFO)
        if verbose:
            logging.getLogger("tvm_edge").exception("internal error")
        advice = "" if verbose else "; run again with -v and report the traceback"
        click.echo(f"internal error: {type(err).__name__}: {err}{advice}", err=True)
        sys.exit(_INTERNAL)
