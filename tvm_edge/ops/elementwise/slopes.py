"""Slopes of PReLU."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_edge.relay_passes.ir.expressions import constant_of

__all__ = ["channel_slopes"]


def channel_slopes(prelu: relax.Call) -> np.ndarray | None:
    """Return the slopes of an NCHW image if they are constant: one, or one for each channel."""
    slopes = constant_of(prelu.args[1])
    if slopes is None or (slopes.size > 1 and int(prelu.attrs.axis) % 4 != 1):
        return None
    return slopes
