"""Output of commands: tables or JSON, files, progress, warnings."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

__all__ = ["compiling", "emit", "plain_warnings", "progress"]


@contextmanager
def progress(message: str) -> Iterator[None]:
    """A spinner on standard error for as long as the block runs; nothing if not a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(message):
        yield


@contextmanager
def compiling(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error, moved by the `progress` yielded; nothing if not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        bar = bars.add_task(f"compiling {what}", total=None)

        def show(phase: str, done: int, total: int) -> None:
            bars.update(bar, description=f"compiling {what}: {phase}", completed=done, total=total)

        yield show


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings as one line each, without source lines."""

    def show(message: Warning | str, *_args: Any, **_kwargs: Any) -> None:
        click.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def emit(as_json: bool, data: Any, text: str) -> None:
    """Print `data` as JSON or `text` as it is."""
    click.echo(json.dumps(_strict(data), indent=2) if as_json else text.rstrip("\n"))


def _strict(data: Any) -> Any:
    """`data` with infinities and NaN as strings: JSON has no numbers for them."""
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, dict):
        return {key: _strict(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_strict(value) for value in data]
    return data
