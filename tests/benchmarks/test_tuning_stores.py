"""Other features for the search, on spaces that were measured."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest

from benchmarks import tuning_stores
from benchmarks.tuning import DATA
from tvm_edge.schedules.conv_config import ConvConfig


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    with gzip.open(DATA, "rt") as file:
        known: dict[str, Any] = json.load(file)
    return known


def test_configurations_have_features_of_their_own_kernels(data: dict[str, Any]) -> None:
    (space,) = (space for space in data["spaces"] if space["number"] == 0)
    configs = [ConvConfig(*space["configs"][place]) for place in (0, 200, 352)]
    resolved = tuning_stores._device(data["device"])
    found, seconds = tuning_stores.store_features(0, configs, resolved)
    assert found.shape == (3, 166)  # 164 of a store, how many stores, how many kernels
    assert np.isfinite(found).all()
    assert len(np.unique(found, axis=0)) == 3
    assert (seconds > 0).all()


def test_features_that_know_the_time_find_the_best(data: dict[str, Any]) -> None:
    space = min(data["spaces"], key=lambda space: len(space["configs"]))
    us = np.array([1e6 if value is None else value for value in space["us"]], "float32")
    found = tuning_stores.compare(space, us[:, None], seeds=1)
    # By 10 % of the space a model that sees the time itself has seen it to the end.
    for name in ("both", "stores"):
        assert found[name][1] == (1.0, 1.0)
    assert all(row[0][0] >= row[2][0] >= 1.0 for row in found.values())
