"""Errors of groups of nodes, and of outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from tvm_edge.errors import DeviceLost, MeasureTimeout, TvmEdgeError
from tvm_edge.workflow.comparison import OutputBits, error_of
from tvm_edge.workflow.node_groups import Group
from tvm_edge.workflow.references import runtime_errors

__all__ = ["in_halves", "joined", "output_bits", "value_range"]


def in_halves(
    groups: Sequence[Group],
    errors: Callable[[Sequence[Group]], dict[int, float]],
    refused: Callable[[Group, Exception], None],
) -> dict[int, float]:
    """Errors of all groups; where some cannot be run, of the others."""
    if not groups:
        return {}
    refusals: tuple[type[Exception], ...] = (TvmEdgeError, *runtime_errors())
    try:
        return errors(groups)
    except (DeviceLost, MeasureTimeout):  # a board that is lost says no more
        raise
    except refusals as err:
        if len(groups) == 1:
            refused(groups[0], err)
            return {}
        half = len(groups) // 2
        return {
            **in_halves(groups[:half], errors, refused),
            **in_halves(groups[half:], errors, refused),
        }


def joined(
    count: int, shared: Sequence[Sequence[int]], wanted: Collection[int]
) -> dict[int, list[int]]:
    """Join nodes that share kernels, directly or by others.

    Parameters
    ----------
    count : int
        Nodes there are.
    shared : sequence of sequence of int
        The nodes of each kernel.
    wanted : collection of int
        Nodes to list.

    Returns
    -------
    dict of int to list of int
        By the first node of each group.
    """
    leader = list(range(count))

    def find(node: int) -> int:
        while leader[node] != node:
            node = leader[node]
        return node

    for members in shared:
        for node in members[1:]:
            first, second = sorted((find(members[0]), find(node)))
            leader[second] = first
    found: dict[int, list[int]] = {}
    for node in wanted:
        found.setdefault(find(node), []).append(node)
    return found


def value_range(values: Sequence[np.ndarray]) -> tuple[float | None, float | None]:
    """Smallest and largest of some tensors' values, ``None`` of what has none.

    NaN of what has nothing else.
    """
    numbers = [v for v in values if v.size and v.dtype.kind in "fiubV"]  # V: bfloat16
    if not numbers:
        return None, None
    whole = np.concatenate([np.asarray(v, "float64").ravel() for v in numbers])
    known = whole[~np.isnan(whole)]
    if not known.size:
        return float("nan"), float("nan")
    return float(known.min()), float(known.max())


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
