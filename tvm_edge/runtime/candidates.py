"""Candidates of tuning: their results are checked, and their times taken, where they run.

On this machine or on a board, which has TVM's runtime tier alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import tvm

from tvm_edge.runtime.model import CompiledModel

__all__ = [
    "Candidate",
    "Operands",
    "kernel_candidate",
    "model_candidate",
    "relative_error",
    "sample_place",
]

# Weights are rotated through so many bytes, about those of a network: what the last run of a
# network read is in no cache of its own by the next.
_COLD_BYTES = 96 << 20
_MAX_COPIES = 64

# Launches that may wait in a queue: drivers of phones give up beyond a few thousand.
_LAUNCHES_IN_FLIGHT = 600


@dataclass(frozen=True)
class Candidate:
    """Code of one configuration.

    Attributes
    ----------
    error : callable
        Runs it and returns the error of its result, relative to the largest value.
    seconds : callable
        Runs it for about as long as asked, in seconds, and returns the mean of one convolution.
    """

    error: Callable[[], float]
    seconds: Callable[[float], float]

    def latencies(self, rounds: int, seconds: float, hopeless: float) -> list[float]:
        """Seconds of one convolution, `rounds` times over about so long each.

        Stops where the median is above `hopeless`.
        """
        self.seconds(0.0)  # caches and clocks
        found: list[float] = []
        while len(found) < rounds:
            found.append(self.seconds(seconds))
            if median(found) > hopeless:
                break
        return found


@dataclass(frozen=True)
class Operands:
    """Operands of a convolution with bias and ReLU.

    Attributes
    ----------
    image, filters, bias : np.ndarray
        As the code reads them: a kernel in channel blocks, a model NCHW.
    expected : np.ndarray
        ``[N, O, OH, OW]``, of the type of the result.
    """

    image: np.ndarray
    filters: np.ndarray
    bias: np.ndarray
    expected: np.ndarray

    def save(self, path: Path) -> None:
        """Write an ``.npz`` file."""
        np.savez(path, **self.__dict__)

    @classmethod
    def load(cls, path: Path) -> Operands:
        """The inverse of :meth:`save`."""
        with np.load(path) as found:
            return cls(**found)

    def filters_in_turn(self) -> list[tvm.runtime.Tensor]:
        """Copies of the filters, as many as caches ask for."""
        copies = max(1, min(_MAX_COPIES, _COLD_BYTES // self.filters.nbytes))
        return [tvm.runtime.tensor(self.filters) for _ in range(copies)]


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest value; infinite where one is not finite."""
    largest = float(np.abs(expected.astype("float64")).max()) or 1.0
    worst = float(np.abs(np.subtract(actual, expected, dtype="float64")).max())
    return worst / largest if np.isfinite(worst) else float("inf")


def kernel_candidate(
    function: Callable[..., Any],
    operands: Operands,
    filters: Sequence[tvm.runtime.Tensor],
    shape: Sequence[int],
) -> Candidate:
    """A kernel of a CPU, on operands in blocks of channels or NCHW.

    Parameters
    ----------
    function : callable
        Takes image, filters, bias and result.
    operands : Operands
    filters : sequence of tvm.runtime.Tensor
        :meth:`Operands.filters_in_turn`; candidates with the same operands share them.
    shape : sequence of int
        Of the result, ``[N, O/b, OH, OW, b]`` or ``[N, O, OH, OW]``.
    """
    image, bias = tvm.runtime.tensor(operands.image), tvm.runtime.tensor(operands.bias)
    dtype = operands.expected.dtype
    result = tvm.runtime.empty(tuple(shape), str(dtype))
    # What is not written is then wrong, whole numbers in one of two runs.
    marks = (np.nan,) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)

    def error() -> float:
        return max(error_over(mark) for mark in marks)

    def error_over(mark: float) -> float:
        result.copyfrom(np.full(tuple(shape), mark, dtype))
        function(image, filters[-1], bias, result)
        found = result.numpy()
        if found.ndim == 5:
            found = found.transpose(0, 1, 4, 2, 3).reshape(found.shape[0], -1, *found.shape[2:4])
        return relative_error(found[:, : operands.expected.shape[1]], operands.expected)

    def seconds(least: float) -> float:
        rotated = cycle(filters)
        runs, elapsed, start = 0, 0.0, perf_counter()
        while not runs or elapsed < least:
            function(image, next(rotated), bias, result)
            runs += 1
            elapsed = perf_counter() - start
        return elapsed / runs

    return Candidate(error, seconds)


def sample_place(expected: np.ndarray) -> tuple[int, ...]:
    """Return the place of a result's largest element, a sample of it; many are 0 after a ReLU."""
    # In float64: int8 has no number as large as -128.
    place = np.unravel_index(np.abs(expected.astype("float64")).argmax(), expected.shape)
    return tuple(int(index) for index in place)


def model_candidate(model: CompiledModel, image: np.ndarray, expected: np.ndarray) -> Candidate:
    """A model of a GPU that has the convolution several times.

    Parameters
    ----------
    model : CompiledModel
        With one input ``image``, which is `image` negated, of int8 bit by bit. The first output is
        `expected`, and each element of the second the one of it at :func:`sample_place`.
    image, expected : np.ndarray
    """
    launches = 2 * len(model.report.kernels)  # a kernel with partial sums is two
    inputs: Mapping[str, np.ndarray] = {"image": -image if image.dtype.kind == "f" else ~image}
    samples = int(model.outputs[1].shape[0])
    same = np.full(samples, expected[sample_place(expected)])

    def error() -> float:
        whole, sampled = model.run(inputs).values()
        return max(relative_error(whole, expected), relative_error(sampled, same))

    def seconds(least: float) -> float:
        one = model.seconds_in_a_row(inputs, 1)
        in_a_row = max(1, min(_LAUNCHES_IN_FLIGHT // launches, int(least / one)))
        runs, elapsed = 0, 0.0
        while not runs or elapsed < least:
            elapsed += in_a_row * model.seconds_in_a_row(inputs, in_a_row)
            runs += in_a_row
        return elapsed / runs / (1 + samples)

    return Candidate(error, seconds)
