"""Errors of groups of nodes, and of outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tvm_edge.workflow.comparison import OutputBits, error_of
from tvm_edge.workflow.node_groups import Group

__all__ = ["in_halves", "output_bits", "value_range"]


def in_halves(
    groups: Sequence[Group],
    errors: Callable[[Sequence[Group]], dict[int, float]],
    refused: Callable[[Group, Exception], None],
) -> dict[int, float]:
    """Errors of all groups; where some cannot be run, of the others."""
    if not groups:
        return {}
    try:
        return errors(groups)
    # ONNX Runtime raises exceptions of its own, and RuntimeError.
    except Exception as err:
        if len(groups) == 1:
            refused(groups[0], err)
            return {}
        half = len(groups) // 2
        return {
            **in_halves(groups[:half], errors, refused),
            **in_halves(groups[half:], errors, refused),
        }


def value_range(values: Sequence[np.ndarray]) -> tuple[float | None, float | None]:
    """Smallest and largest of some tensors' values, ``None`` of what has no numbers."""
    numbers = [v for v in values if v.size and v.dtype.kind in "fiubV"]  # V: bfloat16
    if not numbers:
        return None, None
    with np.errstate(invalid="ignore"):
        lows = [float(np.nanmin(np.asarray(v, "float64"))) for v in numbers]
        highs = [float(np.nanmax(np.asarray(v, "float64"))) for v in numbers]
    return min(lows), max(highs)


def output_bits(
    name: str, deployed: np.ndarray, handed_out: np.ndarray, expected: np.ndarray | None
) -> OutputBits:
    """Compare an output of both builds, and the deployed one's with the reference's."""
    error = 0.0 if expected is None else error_of(deployed, expected)
    same = _same_bits(deployed, handed_out)
    return OutputBits(name, error, same, 0.0 if same else error_of(handed_out, deployed))


def _same_bits(first: np.ndarray, second: np.ndarray) -> bool:
    return (
        first.shape == second.shape
        and first.dtype == second.dtype
        and first.tobytes() == second.tobytes()
    )
