"""Operators that a GPU does not run, or not well: what ``fallback="list"`` goes by.

ICPP'19 (§3.1.2) lists what performs on the GPU; here nearly all does, and the list is of the rest.
OpenCL and CUDA share their schedules, so that it is one for both kinds of device.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm_edge.ops import (
    MULTIBOX_TRANSFORM_LOC,
    NON_MAX_SUPPRESSION,
    SCAN,
    SEGMENTED_ARGSORT,
    UNIQUE,
)

__all__ = ["IMPOSSIBLE", "LISTED", "SHAPE_OPERATORS", "STATIC"]

IMPOSSIBLE: Mapping[str, str] = {
    UNIQUE: "the length of its result depends on data",
    "relax.unique": "the length of its result depends on data",
    "relax.dynamic_strided_slice": "the shape of its result depends on data",
    "relax.vision.all_class_non_max_suppression": "TVM's form of it has no GPU kernel",
    "relax.vision.non_max_suppression": "TVM's form of it has no GPU kernel",
}
"""Operators without a GPU kernel, and why."""

STATIC = frozenset(
    (
        MULTIBOX_TRANSFORM_LOC,
        NON_MAX_SUPPRESSION,
        SCAN,
        SEGMENTED_ARGSORT,
        "relax.argsort",
        "relax.cumprod",
        "relax.cumsum",
        "relax.nonzero",
        "relax.scatter_elements",
        "relax.scatter_nd",
        "relax.sort",
        "relax.topk",
        "relax.vision.get_valid_counts",
    )
)
"""Operators whose GPU kernels are written for one shape."""

LISTED: Mapping[str, str] = {
    name: "listed: it searches, which a CPU does better"
    for name in ("relax.bucketize", "relax.multinomial_from_uniform")
}
"""Operators that a GPU would run, but not well: the list that the paper's fallback goes by."""

SHAPE_OPERATORS = frozenset(("relax.shape_of", "relax.shape_to_tensor", "relax.tensor_to_shape"))
"""Operators that compute shapes, which the host needs."""
