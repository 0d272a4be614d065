"""Operands of a convolution, and its result by NumPy in float64, the reference of candidates.

Accumulators of int8 products are whole numbers, which float64 has exactly; rounded, they are the
same for a kernel that is right.
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
    "tolerance_of",
]

TOLERANCE = 1e-4
"""Largest error relative to the largest value, as for whole models; Winograd's algorithm has some
1e-5. An int8 value that is off by one is off by more."""

# On tensor cores a result of float16 is rounded, and accumulators are truncated.
_TENSOR_TOLERANCE = 1e-3

# Standard deviation of int8 results: one product that is missing moves most of them.
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
        """Return the file of one workload's operands.

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
    """Quantisation of int32 accumulators: ``accumulator · scale``, rounded to even, plus `zero`.

    Attributes
    ----------
    scale : float
        A power of two: float32 has the product exactly where it has the accumulator.
    zero : int
        Zero point of the result, and the value of the image's padding.
    dtype : str
        Type of the result.
    """

    scale: float
    zero: int
    dtype: str

    def of(self, accumulators: np.ndarray) -> np.ndarray:
        """Quantise accumulators as a kernel does."""
        limits = np.iinfo(self.dtype)
        steps = np.rint(accumulators.astype("float32") * np.float32(self.scale)) + self.zero
        return np.clip(steps, limits.min, limits.max).astype(self.dtype)


def rounding_of(workload: ConvWorkload) -> Rounding:
    """Return the quantisation of a problem, which keeps most results within the range."""
    limits = np.iinfo(workload.dtype)
    reduction = workload.channels // workload.groups * prod(workload.kernel)
    # Root mean squares of evenly distributed int8 values.
    deviation = reduction**0.5 * max(limits.max, -limits.min) / 3**0.5 * 128 / 3**0.5
    zero = (limits.min + limits.max + 1) // 2
    return Rounding(2.0 ** -round(log2(deviation / _SPREAD)), zero, workload.dtype)


def tolerance_of(workload: ConvWorkload) -> float:
    """Return the largest error of a candidate's result, relative to the largest value."""
    return _TENSOR_TOLERANCE if workload.dtype in ("float16", "tf32") else TOLERANCE


def make_problem(workload: ConvWorkload, seed: int = 0) -> Operands:
    """Return random operands, the same for the same seed: normal, or even over 8 bits.

    Those for tensor cores have the 10 bits of mantissa of float16 and tf32.
    """
    if workload.is_bytes:
        return _int8_problem(workload, seed)
    if workload.dtype in ("float16", "tf32"):
        return _tensor_problem(workload, seed)
    random = np.random.default_rng(seed)
    own = workload.channels // workload.groups
    image = random.standard_normal(
        (workload.batch, workload.channels, workload.height, workload.width), "float32"
    )
    filters = random.standard_normal((workload.filters, own, *workload.kernel), "float32")
    bias = random.standard_normal(workload.filters, "float32")
    biased = convolve(image, filters, workload) + bias[:, None, None]
    return Operands(image, filters, bias, np.maximum(biased, 0).astype("float32"))


def _tensor_problem(workload: ConvWorkload, seed: int) -> Operands:
    random = np.random.default_rng(seed)
    own = workload.channels // workload.groups
    sizes = (workload.batch, workload.channels, workload.height, workload.width)
    # Results of about 1, filters by Winograd's algorithm up to 20: float16 holds multiples of them
    # by 2**11.
    scale = 2.0 ** -round(log2(own * prod(workload.kernel)) / 2)
    image = (scale * random.standard_normal(sizes)).astype("float16")
    filters = random.standard_normal((workload.filters, own, *workload.kernel)).astype("float16")
    bias = random.standard_normal(workload.filters).astype("float16")
    expected = np.maximum(convolve(image, filters, workload) + bias[:, None, None], 0)
    dtype = "float16" if workload.dtype == "float16" else "float32"
    return Operands(*(value.astype(dtype) for value in (image, filters, bias, expected)))


def _int8_problem(workload: ConvWorkload, seed: int) -> Operands:
    random = np.random.default_rng(seed)
    limits = np.iinfo(workload.dtype)
    shape = (workload.batch, workload.channels, workload.height, workload.width)
    image = random.integers(limits.min, limits.max, shape, workload.dtype, endpoint=True)
    own = workload.channels // workload.groups
    # Without -128, as quantisers write them.
    filters = random.integers(-127, 128, (workload.filters, own, *workload.kernel), "int8")
    bias = random.integers(-10_000, 10_000, workload.filters, "int32")
    rounding = rounding_of(workload)
    accumulators = convolve(image, filters, workload, rounding.zero) + bias[:, None, None]
    return Operands(image, filters, bias, rounding.of(accumulators))


def convolve(
    image: np.ndarray, filters: np.ndarray, workload: ConvWorkload, padding: float = 0.0
) -> np.ndarray:
    """Convolve in float64: a matrix product for each place of the window and each group.

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
    result = np.zeros(shape)
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
            result += weights[None, :, :, :, y, x] @ window
    return result.reshape(workload.batch, workload.filters, lines, columns)


def convolve_at(
    image: np.ndarray,
    filters: np.ndarray,
    workload: ConvWorkload,
    place: Sequence[int],
    padding: float = 0.0,
) -> float:
    """Return one element of :func:`convolve`, by its batch, filter, line and column."""
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
