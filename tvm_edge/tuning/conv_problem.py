"""Operands of a convolution, and its result by NumPy in float64: what candidates are held to.

Sums of bytes are whole numbers, which float64 has exactly; what is rounded of them is the same for
a kernel that is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2, prod
from pathlib import Path

import numpy as np

from tvm_edge.errors import TuningError
from tvm_edge.runtime.candidates import Operands
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = [
    "TOLERANCE",
    "ProblemFiles",
    "Rounding",
    "convolve",
    "convolve_at",
    "make_problem",
    "rounding_of",
]

TOLERANCE = 1e-4
"""Of the largest value, as for whole models; Winograd's algorithm has some 1e-5. A byte that is
off by one is off by more."""

# Standard deviation of results in bytes: one product that is missing moves most of them.
_SPREAD = 40


class ProblemFiles:
    """Operands of each workload in a file, made when it is first tried.

    Parameters
    ----------
    folder : Path
    workloads : sequence of ConvWorkload
    """

    def __init__(self, folder: Path, workloads: Sequence[ConvWorkload]) -> None:
        self._folder, self._workloads = folder, workloads

    def path(self, index: int) -> Path:
        """The file of one workload's operands.

        Raises
        ------
        TuningError
            The temporary folder is full.
        """
        path = self._folder / f"{index}.npz"
        if not path.exists():
            try:
                make_problem(self._workloads[index], index).save(path)
            except OSError as err:
                raise TuningError(
                    f"the operands of a convolution cannot be written to {str(path)!r} "
                    f"({err.strerror or err}); make room there, or set TMPDIR to another folder"
                ) from err
        return path


@dataclass(frozen=True)
class Rounding:
    """How sums of bytes become bytes: ``sum · scale``, rounded to even, moved by `zero`.

    Attributes
    ----------
    scale : float
        A power of two: float32 has the product exactly where it has the sum.
    zero : int
        Of the result, and what the image is padded with.
    dtype : str
        Of the result.
    """

    scale: float
    zero: int
    dtype: str

    def of(self, sums: np.ndarray) -> np.ndarray:
        """What a kernel makes of sums."""
        limits = np.iinfo(self.dtype)
        steps = np.rint(sums.astype("float32") * np.float32(self.scale)) + self.zero
        return np.clip(steps, limits.min, limits.max).astype(self.dtype)


def rounding_of(workload: ConvWorkload) -> Rounding:
    """That of a problem: most sums keep within the range."""
    limits = np.iinfo(workload.dtype)
    terms = workload.channels // workload.groups * prod(workload.kernel)
    # Root mean squares of evenly distributed bytes.
    deviation = terms**0.5 * max(limits.max, -limits.min) / 3**0.5 * 128 / 3**0.5
    zero = (limits.min + limits.max + 1) // 2
    return Rounding(2.0 ** -round(log2(deviation / _SPREAD)), zero, workload.dtype)


def make_problem(workload: ConvWorkload, seed: int = 0) -> Operands:
    """Random operands, the same for the same seed: normally distributed, or all bytes."""
    if workload.is_bytes:
        return _problem_of_bytes(workload, seed)
    random = np.random.default_rng(seed)
    own = workload.channels // workload.groups
    image = random.standard_normal(
        (workload.batch, workload.channels, workload.height, workload.width), "float32"
    )
    filters = random.standard_normal((workload.filters, own, *workload.kernel), "float32")
    bias = random.standard_normal(workload.filters, "float32")
    sums = convolve(image, filters, workload) + bias[:, None, None]
    return Operands(image, filters, bias, np.maximum(sums, 0).astype("float32"))


def _problem_of_bytes(workload: ConvWorkload, seed: int) -> Operands:
    random = np.random.default_rng(seed)
    limits = np.iinfo(workload.dtype)
    shape = (workload.batch, workload.channels, workload.height, workload.width)
    image = random.integers(limits.min, limits.max, shape, workload.dtype, endpoint=True)
    own = workload.channels // workload.groups
    filters = random.integers(-128, 128, (workload.filters, own, *workload.kernel), "int8")
    bias = random.integers(-10_000, 10_000, workload.filters, "int32")
    rounding = rounding_of(workload)
    sums = convolve(image, filters, workload, rounding.zero) + bias[:, None, None]
    return Operands(image, filters, bias, rounding.of(sums))


def convolve(
    image: np.ndarray, filters: np.ndarray, workload: ConvWorkload, padding: float = 0.0
) -> np.ndarray:
    """A convolution in float64: a matrix product for each place of the window and each group.

    The image is padded with `padding`.
    """
    top, left, bottom, right = workload.padding
    around = ((0, 0), (0, 0), (top, bottom), (left, right))
    padded = np.pad(image.astype("float64"), around, constant_values=padding)
    lines, columns = workload.output
    groups = workload.groups
    taken = padded.reshape(workload.batch, groups, -1, *padded.shape[2:])
    weights = filters.astype("float64").reshape(groups, -1, *filters.shape[1:])
    shape = (workload.batch, groups, weights.shape[1], lines * columns)
    sums = np.zeros(shape)
    for y in range(workload.kernel[0]):
        for x in range(workload.kernel[1]):
            first = (y * workload.dilation[0], x * workload.dilation[1])
            steps = [
                slice(start, start + (count - 1) * stride + 1, stride)
                for start, count, stride in zip(
                    first, (lines, columns), workload.strides, strict=True
                )
            ]
            window = taken[:, :, :, steps[0], steps[1]].reshape(*taken.shape[:3], -1)
            sums += weights[None, :, :, :, y, x] @ window
    return sums.reshape(workload.batch, workload.filters, lines, columns)


def convolve_at(
    image: np.ndarray,
    filters: np.ndarray,
    workload: ConvWorkload,
    place: Sequence[int],
    padding: float = 0.0,
) -> float:
    """One element of :func:`convolve`, by its batch, filter, line and column."""
    batch, row, *pixel = place
    own = workload.channels // workload.groups
    first = row // (workload.filters // workload.groups) * own
    top, left, bottom, right = workload.padding
    padded = np.pad(
        image[batch, first : first + own].astype("float64"),
        ((0, 0), (top, bottom), (left, right)),
        constant_values=padding,
    )
    lines, columns = (
        slice(at * stride, at * stride + (size - 1) * step + 1, step)
        for at, stride, size, step in zip(
            pixel, workload.strides, workload.kernel, workload.dilation, strict=True
        )
    )
    return float((padded[:, lines, columns] * filters[row]).sum())
