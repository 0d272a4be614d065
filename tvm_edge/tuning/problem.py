"""Operands of a convolution, and its result by NumPy in float64: what candidates are held to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tvm_edge.errors import TuningError
from tvm_edge.runtime.candidates import Operands
from tvm_edge.schedules.blocked import ConvWorkload

__all__ = ["TOLERANCE", "ProblemFiles", "convolve", "make_problem"]

TOLERANCE = 1e-4
"""Of the largest value, as for whole models; Winograd's algorithm has some 1e-5."""


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


def make_problem(workload: ConvWorkload, seed: int = 0) -> Operands:
    """Normally distributed operands, the same for the same seed."""
    random = np.random.default_rng(seed)
    own = workload.channels // workload.groups
    image = random.standard_normal(
        (workload.batch, workload.channels, workload.height, workload.width), "float32"
    )
    filters = random.standard_normal((workload.filters, own, *workload.kernel), "float32")
    bias = random.standard_normal(workload.filters, "float32")
    sums = convolve(image, filters, workload) + bias[:, None, None]
    return Operands(image, filters, bias, np.maximum(sums, 0).astype("float32"))


def convolve(image: np.ndarray, filters: np.ndarray, workload: ConvWorkload) -> np.ndarray:
    """A convolution in float64: a matrix product for each place of the window and each group."""
    top, left, bottom, right = workload.padding
    padded = np.pad(image.astype("float64"), ((0, 0), (0, 0), (top, bottom), (left, right)))
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
