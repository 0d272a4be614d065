"""Ensembles of decision trees: ``TreeEnsemble``, and ``TreeEnsembleRegressor`` before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx

from tvm_edge.ops.classical.attributes import array_of, floats
from tvm_edge.ops.classical.forest import MODES, Forest, walk
from tvm_edge.ops.converter import Attributes, scalar, text
from tvm_edge.ops.registry import register
from tvm_edge.relay_passes.ir.expressions import static_shape

__all__: list[str] = []

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")

# Elements of the table of votes: each node of all trees, for each target.
_MOST_VOTES = 1 << 26

_EQ, _MEMBER = MODES.index("EQ"), len(MODES)


def _convert(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """Convert a TreeEnsemble: nodes and leaves are numbered apart, leaves come after here."""
    splits = array_of(attrs["nodes_splits"])
    count, leaves = len(splits), np.asarray(attrs["leaf_targetids"])
    children = []
    for way in ("true", "false"):
        node = np.asarray(attrs[f"nodes_{way}nodeids"], "int64")
        children.append(np.where(attrs[f"nodes_{way}leafs"], node + count, node))
    itself = np.arange(count, count + len(leaves))
    zeros = np.zeros(len(leaves), "int64")
    missing = attrs.get("nodes_missing_value_tracks_true") or np.zeros(count)
    forest = Forest(
        features=np.concatenate([np.asarray(attrs["nodes_featureids"], "int64"), zeros]),
        modes=np.concatenate([array_of(attrs["nodes_modes"]).astype("int64"), zeros]),
        splits=np.concatenate([splits, zeros.astype(splits.dtype)]),
        missing=np.concatenate([np.asarray(missing, bool), zeros.astype(bool)]),
        yes=np.concatenate([children[0], itself]),
        no=np.concatenate([children[1], itself]),
        roots=np.asarray(attrs["tree_roots"], "int64"),
    )
    if "membership_values" in attrs:
        forest = _sets_written_out(forest, array_of(attrs["membership_values"]))
    return _aggregated(
        bb,
        _compared_in(bb, inputs[0], splits.dtype.name),
        forest,
        votes=(itself, leaves, array_of(attrs["leaf_weights"])),
        targets=int(attrs["n_targets"]),
        aggregate=_AGGREGATES[int(attrs.get("aggregate_function", 1))],
        transform=_TRANSFORMS[int(attrs.get("post_transform", 0))],
    )


def _sets_written_out(forest: Forest, members: np.ndarray) -> Forest:
    """Replace each node that looks into a set by a chain, a comparison for each member."""
    ends = np.flatnonzero(np.isnan(members))
    starts = np.concatenate([[0], ends[:-1] + 1])
    tables = {name: list(table) for name, table in vars(forest).items()}
    nodes = np.flatnonzero(forest.modes == _MEMBER)
    if len(nodes) != len(ends):
        raise ValueError(f"{len(ends)} sets for {len(nodes)} nodes of a TreeEnsemble")
    for node, start, end in zip(nodes, starts, ends, strict=True):
        # NaN is equal to nothing: an empty set.
        values = members[start:end] if end > start else members[end : end + 1]
        tables["modes"][node], tables["splits"][node] = _EQ, values[0]
        last = int(node)
        for value in values[1:]:
            otherwise = tables["no"][last]
            tables["no"][last] = last = len(tables["yes"])
            for name, entry in (
                ("features", forest.features[node]),
                ("modes", _EQ),
                ("splits", value),
                ("missing", False),
                ("yes", forest.yes[node]),
                ("no", otherwise),
            ):
                tables[name].append(entry)
    return Forest(**{k: np.asarray(v, getattr(forest, k).dtype) for k, v in tables.items()})


def _convert_regressor(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Convert a TreeEnsembleRegressor: nodes and votes go by numbers of trees and nodes."""
    forest, rows = _forest_of_nodes(attrs)
    weights = floats(attrs, "target_weights")
    if weights is None:
        raise ValueError("TreeEnsembleRegressor without weights")
    voters = zip(attrs["target_treeids"], attrs["target_nodeids"], strict=True)
    result = _aggregated(
        bb,
        _compared_in(bb, inputs[0], forest.splits.dtype.name),
        forest,
        votes=(
            np.asarray([rows[voter] for voter in voters], "int64"),
            np.asarray(attrs["target_ids"], "int64"),
            weights,
        ),
        targets=int(attrs["n_targets"]),
        aggregate=text(attrs, "aggregate_function", "SUM"),
        transform=text(attrs, "post_transform", "NONE"),
        base=floats(attrs, "base_values"),
    )
    return bb.normalize(relax.op.astype(result, "float32"))


def _forest_of_nodes(attrs: Attributes) -> tuple[Forest, dict[tuple[int, int], int]]:
    """Return the trees, and the row of each node by its tree and its number there."""
    names = list(zip(attrs["nodes_treeids"], attrs["nodes_nodeids"], strict=True))
    rows = {name: row for row, name in enumerate(names)}
    modes = [mode.decode() if isinstance(mode, bytes) else mode for mode in attrs["nodes_modes"]]
    leaf = np.asarray([mode == "LEAF" for mode in modes])
    count = np.arange(len(names))
    splits = floats(attrs, "nodes_values")
    if splits is None or len(rows) != len(names):
        raise ValueError("trees without thresholds, or with two nodes of one number")

    def children(way: str) -> np.ndarray:
        ids = attrs[f"nodes_{way}nodeids"]
        found = [
            row if leaf[row] else rows.get((tree, child), -1)
            for row, ((tree, _), child) in enumerate(zip(names, ids, strict=True))
        ]
        return np.asarray(found, "int64")

    yes, no = children("true"), children("false")
    below = np.concatenate([yes[~leaf], no[~leaf]])
    missing = attrs.get("nodes_missing_value_tracks_true") or np.zeros(len(names))
    forest = Forest(
        features=np.where(leaf, 0, attrs["nodes_featureids"]),
        modes=np.asarray(
            [0 if end else MODES.index(mode[7:]) for end, mode in zip(leaf, modes, strict=True)]
        ),
        splits=splits,
        missing=np.asarray(missing, bool),
        yes=yes,
        no=no,
        roots=np.setdiff1d(count, below),
    )
    return forest, rows


def _compared_in(bb: relax.BlockBuilder, x: relax.Expr, dtype: str) -> relax.Expr:
    """Return the features in the type of the thresholds; integers in float64, which holds them."""
    shape = static_shape(x.ty)
    if x.ty.ndim != 2 or (shape is None and not isinstance(x.ty.shape[1], tirx.IntImm)):
        raise NotImplementedError("trees over a number of features known only at run time")
    return x if str(x.ty.dtype) == dtype else bb.emit(relax.op.astype(x, dtype))


def _aggregated(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    forest: Forest,
    *,
    votes: tuple[np.ndarray, np.ndarray, np.ndarray],
    targets: int,
    aggregate: str,
    transform: str,
    base: np.ndarray | None = None,
) -> relax.Expr:
    """Bring together what the leaves say of each target.

    `votes` are leaf, target and weight of each vote; the result is ``(rows, targets)``.
    """
    where, target, weights = votes
    if len(target) and not 0 <= target.min() <= target.max() < targets:
        raise ValueError(f"a tree that votes for a target which is not one of {targets}")
    if targets < 1 or targets * len(forest.yes) > _MOST_VOTES:
        raise NotImplementedError(f"{len(forest.yes)} nodes of trees with {targets} targets")
    dtype = weights.dtype.name
    limits = np.finfo(weights.dtype)
    neutral = {"MIN": limits.max, "MAX": limits.min}.get(aggregate, 0)
    table = np.full((len(forest.yes), targets), neutral, weights.dtype)
    combine = {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add)
    combine.at(table, (where, target), weights)
    reduce = {"MIN": te.min, "MAX": te.max}.get(aggregate, te.sum)

    def gathered(at: te.Tensor, table: te.Tensor) -> te.Tensor:
        tree = te.reduce_axis((0, at.shape[1]), name="tree")
        return te.compute(
            (at.shape[0], targets),
            lambda row, target: reduce(table(at(row, tree), target), axis=tree),
            name="votes",
        )

    total = bb.emit_te(gathered, walk(bb, x, forest), relax.const(table, dtype))
    if aggregate == "AVERAGE":
        total = bb.emit(relax.op.divide(total, scalar(len(forest.roots), total)))
    elif neutral:  # no tree has voted for it
        none = relax.op.equal(total, scalar(neutral, total))
        total = bb.emit(relax.op.where(none, scalar(0, total), total))
    if base is not None:
        total = bb.emit(relax.op.add(total, relax.const(base.astype(dtype), dtype)))
    return _transformed(bb, total, transform)


def _transformed(bb: relax.BlockBuilder, scores: relax.Expr, transform: str) -> relax.Expr:
    if transform == "SOFTMAX":
        return bb.emit(relax.op.nn.softmax(scores, 1))
    if transform == "LOGISTIC":
        return bb.emit(relax.op.sigmoid(scores))
    if transform != "NONE":
        raise NotImplementedError(f"trees with the transform {transform}")
    return scores


register("ai.onnx.ml.TreeEnsemble", convert=_convert)
register("ai.onnx.ml.TreeEnsembleRegressor", convert=_convert_regressor)
