"""The exception tree of tvm-edge.

Every error a user can cause or has to act on derives from :class:`TvmEdgeError`::

    TvmEdgeError
    ├── InvalidModelError          the model file or module itself is wrong
    ├── UnsupportedOperatorError   the model is right, an operator has no implementation
    ├── CompilationError           the compiler itself fails: a bug, here or in TVM
    ├── InputError                 a value handed to run() or an option is wrong
    ├── DeviceUnavailableError     the device, driver or CPU feature is not on this machine
    ├── PlacementError             an operator cannot be where it was asked to be
    ├── MemoryBudgetError          no plan fits the budget
    ├── ArtifactError              an exported file is damaged, foreign or cannot be written
    ├── RecordError                a tuning record or record store is wrong
    ├── MissingDependencyError     an optional package is not installed
    └── TuningError                a measurement failed
        ├── MeasureTimeout
        ├── DeviceLost
        ├── WrongResult
        └── InvalidLaunch

A message says what happened, to which object, and the next thing to type. The command line maps
them to exit codes through :attr:`TvmEdgeError.exit_code`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "ArtifactError",
    "CompilationError",
    "DeviceLost",
    "DeviceUnavailableError",
    "InputError",
    "InvalidLaunch",
    "InvalidModelError",
    "MeasureTimeout",
    "MemoryBudgetError",
    "MissingDependencyError",
    "PlacementError",
    "RecordError",
    "TuningError",
    "TvmEdgeError",
    "TvmEdgeWarning",
    "UnsupportedOperatorError",
    "WrongResult",
    "near_matches",
    "one_line",
]


class TvmEdgeError(Exception):
    """Base of every error raised on purpose by tvm-edge.

    Attributes
    ----------
    exit_code : int
        Exit status of the command line: 4 for something the user can correct in the model,
        the input or the options, 5 for a missing dependency or device, 1 for a bug of ours.
    """

    exit_code = 4


class InvalidModelError(TvmEdgeError):
    """The model is truncated, malformed, inconsistent or not a model at all."""


class UnsupportedOperatorError(TvmEdgeError):
    """The model is valid but holds operators nobody here implements.

    Attributes
    ----------
    operators : tuple[str, ...]
        The operator types that have no implementation, each once.
    """

    def __init__(self, message: str, operators: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.operators = tuple(operators)


class CompilationError(TvmEdgeError):
    """A phase of the compiler met what it did not foresee; the cause is chained.

    A bug of tvm-edge or of TVM, not of the model: report it.
    """

    exit_code = 1


class InputError(TvmEdgeError):
    """A tensor or an option has the wrong name, shape, type or value.

    Attributes
    ----------
    name, expected, got : str
        The object at fault, what it should have been, and what it was.
    """

    def __init__(self, message: str, *, name: str = "", expected: str = "", got: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.expected = expected
        self.got = got


class DeviceUnavailableError(TvmEdgeError):
    """The device, its driver or a CPU feature that the code needs is not on this machine."""

    exit_code = 5


class PlacementError(TvmEdgeError):
    """An operator cannot be placed where it was asked to be."""


class MemoryBudgetError(TvmEdgeError):
    """No execution plan fits the memory budget.

    Attributes
    ----------
    budget, smallest_feasible : int
        Bytes.
    """

    def __init__(self, message: str, *, budget: int, smallest_feasible: int) -> None:
        super().__init__(message)
        self.budget = budget
        self.smallest_feasible = smallest_feasible


class ArtifactError(TvmEdgeError):
    """An exported artifact is truncated, altered, foreign, or cannot be written."""


class RecordError(TvmEdgeError):
    """A tuning record or a store of records cannot be read or written."""


class MissingDependencyError(TvmEdgeError):
    """An optional package is not installed; the message names the pip command."""

    exit_code = 5


class TuningError(TvmEdgeError):
    """A candidate or a device failed during measurement."""


class MeasureTimeout(TuningError):
    """A candidate ran past its time limit."""


class DeviceLost(TuningError):
    """The device, or its server, stopped answering."""


class WrongResult(TuningError):
    """A candidate ran and its output differs from the reference."""


class InvalidLaunch(TuningError):
    """A candidate asked for more than the device grants (work-group size, local memory, …)."""


class TvmEdgeWarning(UserWarning):
    """Something the user should know of a model that compiles all the same."""


def near_matches(name: str, known: Iterable[str]) -> str:
    """Return a clause naming what the user may have meant, for the end of a message.

    Examples
    --------
    >>> near_matches("resnet5", ["resnet50_v1", "vgg16"])
    "did you mean 'resnet50_v1'?"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if not close:  # perhaps only the case differs
        lower = {candidate.lower(): candidate for candidate in names}
        close = [lower[c] for c in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.5)]
    if close:
        return f"did you mean {' or '.join(repr(c) for c in close)}?"
    if len(names) <= 20:
        return f"known: {', '.join(names)}" if names else "none are known"
    return f"known: {', '.join(names[:20])}, … ({len(names)} in all)"


def one_line(err: BaseException, limit: int = 300) -> str:
    """Return the message of an exception as one line that can be printed, for use in another."""
    text = " ".join(str(err).split()) or type(err).__name__
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"
