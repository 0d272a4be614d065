"""Cost model: gradient-boosted trees that learn to rank configurations (XGBoost)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tvm_edge.extras import require

__all__ = ["CostModel"]

_PARAMETERS = {
    "objective": "rank:pairwise",
    "lambdarank_pair_method": "mean",
    "lambdarank_num_pair_per_sample": 8,
    "eta": 0.15,
    "max_depth": 6,
    "min_child_weight": 0.5,
    "subsample": 0.9,
    "tree_method": "hist",
    # Threads that wait by spinning, beside other work on the machine, turn 0.1 s into 10.
    "nthread": 1,
}
_TREES = 80


class CostModel:
    """Ranking of a task's configurations, learnt from the measurements of all tasks.

    Pairs within a task are compared, as in AutoTVM's rank loss (Chen et al., "Learning to Optimize
    Tensor Programs", 2018, §3.2); across tasks it shares what features have in common.

    Parameters
    ----------
    features : sequence of np.ndarray
        By task, see :func:`tvm_edge.tuning.features.features`.
    seed : int

    Raises
    ------
    MissingDependencyError
        XGBoost is not installed.
    """

    def __init__(self, features: Sequence[np.ndarray], seed: int = 0) -> None:
        self._xgboost = require("xgboost", "tune", "to rank what tuning tries")
        self._features = features
        self._seed = seed
        self._trees = None

    def fit(self, measured: Sequence[Mapping[int, float]]) -> None:
        """Learn from all measurements, without what was learnt before.

        Parameters
        ----------
        measured : sequence of mapping of int to float
            By task: seconds of configurations by their place, infinite for failures.
        """
        rows, labels, groups = [], [], []
        for features, found in zip(self._features, measured, strict=True):
            finite = [seconds for seconds in found.values() if np.isfinite(seconds)]
            if len(found) < 2 or not finite:
                continue
            rows.append(features[list(found)])
            labels += [min(finite) / seconds for seconds in found.values()]
            groups.append(len(found))
        if not rows:
            return
        data = self._xgboost.DMatrix(np.concatenate(rows), np.array(labels, "float32"))
        data.set_group(groups)
        parameters = {**_PARAMETERS, "seed": self._seed}
        self._trees = self._xgboost.train(parameters, data, _TREES)

    def scores(self, task: int) -> np.ndarray | None:
        """Score each configuration of a task, higher for faster; ``None`` if nothing was learnt."""
        if self._trees is None:
            return None
        found: np.ndarray = self._trees.predict(self._xgboost.DMatrix(self._features[task]))
        return found
