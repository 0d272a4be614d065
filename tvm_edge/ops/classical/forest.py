"""Decision trees as tables, and kernels that walk them.

All nodes of all trees, leaves among them, are rows of the same tables. A leaf leads to itself:
every row of data then walks as many steps as the deepest tree has, without a branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

__all__ = ["MODES", "Forest", "walk"]

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
"""Comparisons of a feature with a threshold, as ``TreeEnsemble`` numbers them."""

_COMPARE = {
    "LEQ": lambda x, split: x <= split,
    "LT": lambda x, split: x < split,
    "GTE": lambda x, split: x >= split,
    "GT": lambda x, split: x > split,
    "EQ": lambda x, split: x == split,
    "NEQ": lambda x, split: x != split,
}


@dataclass(frozen=True)
class Forest:
    """Trees, a row for each node.

    Attributes
    ----------
    features : numpy.ndarray
        Which feature a node looks at.
    modes : numpy.ndarray
        How it compares, an index of :data:`MODES`.
    splits : numpy.ndarray
        What with, in the type that features are compared in.
    missing : numpy.ndarray of bool
        Whether NaN goes the way of what is true.
    yes, no : numpy.ndarray
        The next node; a leaf's is itself.
    roots : numpy.ndarray
        The first node of each tree.
    """

    features: np.ndarray
    modes: np.ndarray
    splits: np.ndarray
    missing: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    roots: np.ndarray

    def depth(self, features: int) -> int:
        """Return the number of steps to the farthest leaf.

        Parameters
        ----------
        features : int
            How many there are.

        Raises
        ------
        ValueError
            A node leads nowhere, back to itself, or looks at a feature that is not there.
        """
        count = len(self.yes)
        for name, table, limit in (
            ("node", np.concatenate([self.yes, self.no, self.roots]), count),
            ("feature", self.features, features),
        ):
            if len(table) and not 0 <= table.min() <= table.max() < limit:
                raise ValueError(f"a tree with a {name} that is not one of {limit}")
        at, depth = np.unique(self.roots), 0
        while (self.yes[at] != at).any() or (self.no[at] != at).any():
            at = np.unique(np.concatenate([self.yes[at], self.no[at]]))
            depth += 1
            if depth > count:
                raise ValueError("a tree in which a node leads back to itself")
        return depth


def walk(bb: relax.BlockBuilder, x: relax.Expr, forest: Forest) -> relax.Expr:
    """Walk every tree for every row, a kernel a step.

    Parameters
    ----------
    bb : relax.BlockBuilder
    x : relax.Expr
        ``(rows, features)``, of the type of the thresholds.
    forest : Forest

    Returns
    -------
    relax.Expr
        The leaf ``(rows, trees)`` that each row comes to, int32.
    """
    used = sorted({int(mode) for mode in forest.modes})
    constants = [
        relax.const(np.ascontiguousarray(table, dtype), dtype)
        for table, dtype in (
            (forest.features, "int32"),
            (forest.splits, forest.splits.dtype.name),
            (forest.yes, "int32"),
            (forest.no, "int32"),
            (forest.modes, "int8"),
            (forest.missing, "int8"),
        )
    ]
    any_missing = bool(forest.missing.any())

    def step(at: te.Tensor, x: te.Tensor, *tables: te.Tensor) -> te.Tensor:
        features, splits, yes, no, modes, missing = tables

        def following(row: tirx.Var, tree: tirx.Var) -> tirx.Expr:
            node = at(row, tree)
            value, split = x(row, features(node)), splits(node)
            holds = _COMPARE[MODES[used[-1]]](value, split)
            for mode in used[-2::-1]:
                compared = _COMPARE[MODES[mode]](value, split)
                holds = tirx.Select(modes(node) == mode, compared, holds)
            if any_missing:
                holds = tirx.any(holds, tirx.all(tirx.isnan(value), missing(node) != 0))
            return tirx.Select(holds, yes(node), no(node))

        return te.compute(at.shape, following, name="next_node")

    rows: Any = x.ty.shape[0]
    roots = relax.const(np.asarray(forest.roots, "int32")[None], "int32")
    at = bb.emit(relax.op.broadcast_to(roots, (rows, len(forest.roots))))
    for _ in range(forest.depth(int(x.ty.shape[1]))):
        at = bb.emit_te(step, at, x, *constants)
    return at
