"""``tvm-edge cache``: built kernels that compilations share."""

from __future__ import annotations

from dataclasses import asdict

import click

from tvm_edge.cli import options, printing
from tvm_edge.lowering.kernel_cache import CacheState, open_cache


@click.group("cache")
def cache_command() -> None:
    """Built kernels on disk, which later compilations take instead of building them again.

    They are in TVM_EDGE_CACHE, else in the platform's cache folder. TVM_EDGE_CACHE=0 turns the
    cache off, and TVM_EDGE_CACHE_SIZE is the most that it holds, in MiB (512).
    """


@cache_command.command("show")
@options.json_option
def show_command(as_json: bool) -> None:
    """Show the folder, and how much is in it."""
    cache = open_cache()
    state = CacheState("", 0, 0, 0) if cache is None else cache.state()
    text = "the cache is off (TVM_EDGE_CACHE=0)" if cache is None else _words(state)
    printing.emit(as_json, asdict(state), text)


@cache_command.command("clear")
@options.json_option
def clear_command(as_json: bool) -> None:
    """Remove all kernels."""
    cache = open_cache()
    state = CacheState("", 0, 0, 0) if cache is None else cache.clear()
    text = "the cache is off (TVM_EDGE_CACHE=0)" if cache is None else f"removed {_words(state)}"
    printing.emit(as_json, asdict(state), text)


def _words(state: CacheState) -> str:
    size, limit = (nbytes / 2**20 for nbytes in (state.nbytes, state.limit))
    return f"{state.entries} entries, {size:.1f} of {limit:.0f} MiB, in {state.folder}"
