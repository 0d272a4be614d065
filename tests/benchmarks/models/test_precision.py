"""Accuracy of logits that overflowed."""

from __future__ import annotations

import numpy as np

from benchmarks.models.precision import compare_logits


def test_an_overflow_is_counted_and_no_other_picture_hides_it() -> None:
    expected = [np.float32([1.0, 2.0, 4.0]), np.float32([3.0, 1.0, 0.0])]
    for lost in (np.nan, np.inf):
        found = compare_logits([np.float32([1.0, lost, 4.0]), expected[1]], expected)
        assert found["overflows"] == 1 and found["worst"] == np.inf
        assert found["agreement"] == 0.5
    right = compare_logits(expected, expected)
    assert right["overflows"] == 0 and right["worst"] == 0.0 and right["agreement"] == 1.0
