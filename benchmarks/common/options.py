"""Options of benchmarks; those that several have are defined here, once."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Among", "Parser", "chosen_numbers", "save_json"]


@dataclass(frozen=True)
class Among:
    """The default of a shared option, and the only values that it takes here."""

    default: Any
    choices: Sequence[str]


class Parser(argparse.ArgumentParser):
    """The command line of a benchmark.

    Parameters
    ----------
    name : str
        As it stands in :mod:`benchmarks.catalogue`.
    about : str
        What it measures, and how.
    """

    def __init__(self, name: str, about: str | None) -> None:
        super().__init__(
            prog=f"python -m benchmarks run {name}",
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def shared(self, **defaults: Any) -> None:
        """Take options that several benchmarks have, each by its default or an :class:`Among`."""
        for name, default in defaults.items():
            option = dict(_SHARED[name])
            if isinstance(default, Among):
                option["help"] += f": {', '.join(default.choices)}"
                option["choices"], default = default.choices, default.default
            if default:
                words = [default] if isinstance(default, str | int | float | Path) else default
                option["help"] += f" (default: {' '.join(map(str, words))})"
            self.add_argument(f"--{name.replace('_', '-')}", default=default, **option)


def chosen_numbers(
    parser: argparse.ArgumentParser, option: str, numbers: Sequence[int] | None, count: int
) -> list[int]:
    """The numbers that were asked for; all of `count` by default.

    Parameters
    ----------
    parser : ArgumentParser
        Ends the command where a number is of nothing.
    option : str
        As it is typed, for the message.
    numbers : sequence of int, optional
    count : int
        How many there are to choose from.
    """
    for number in numbers or ():
        if not 0 <= number < count:
            parser.error(f"argument {option}: there is no {number}; choose from 0 to {count - 1}")
    return list(numbers or range(count))


def save_json(path: Path | None, content: Any) -> None:
    """Write what is known so far, if a file is wanted."""
    if path is not None:
        path.write_text(json.dumps(content, indent=2))


class _Names(argparse.Action):
    """Names with spaces or commas between them; all that were given count."""

    def __init__(self, choices: Sequence[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._known = choices  # argparse would compare words that still have commas in them

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        flag: str | None = None,
    ) -> None:
        before = [] if (found := getattr(namespace, self.dest)) is self.default else found
        names = [name for value in values for name in value.split(",") if name]
        for name in names:
            if self._known is not None and name not in self._known:
                known = ", ".join(self._known)
                parser.error(f"argument {flag}: there is no {name!r}; choose from {known}")
        setattr(namespace, self.dest, [*before, *names])


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} measures nothing; give at least 1")
    return int(text)


_NAMES: dict[str, Any] = {"action": _Names, "nargs": "+", "metavar": "NAME"}
_NUMBERS: dict[str, Any] = {
    "type": int,
    "nargs": "*",
    "metavar": "N",
    "help": "their numbers; default all",
}
_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}

_SHARED: dict[str, dict[str, Any]] = {
    "cases": {**_NAMES, "help": "cases"},
    "jobs": {"type": _count, "metavar": "N", "help": "compilations at a time"},
    "json": {**_FILE, "help": "write all that was measured to this file"},
    "layers": _NUMBERS,
    "networks": {**_NAMES, "help": "networks, by their names in the zoo"},
    "no_tune": {"action": "store_true", "help": "tune nothing; take the records that are there"},
    "part": {**_NAMES, "help": "parts of the benchmark; default all"},
    "pictures": {"type": int, "metavar": "N", "help": "pictures that are compared"},
    "png": {**_FILE, "help": "draw a picture to this file"},
    "records": {"type": Path, "metavar": "FOLDER", "help": "keep tuning records here"},
    "rounds": {"type": _count, "metavar": "N", "help": "times that each takes its turn"},
    "rows": _NUMBERS,
    "runtimes": {**_NAMES, "help": "runtimes to compare"},
    "seconds": {"type": float, "metavar": "S", "help": "of timed runs in a process"},
    "shapes": _NUMBERS,
    "spaces": _NUMBERS,
    "target": {"metavar": "TARGET", "help": "target to compile for"},
    "targets": {**_NAMES, "metavar": "TARGET", "help": "targets to compile for"},
    "threads": {"type": _count, "metavar": "N", "help": "threads on the CPU"},
    "trials": {"type": _count, "metavar": "N", "help": "trials of each convolution"},
}
