"""Weights and biases as a quantised model stores them: whole numbers, scale and zero point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvm_edge.relay_passes.ir.expressions import constant_of

__all__ = ["QuantizedConstant", "stored_constant"]


@dataclass(frozen=True)
class QuantizedConstant:
    """Whole numbers, and scale and zero point in shapes that are broadcast to theirs."""

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray

    @property
    def whole(self) -> np.ndarray:
        """The numbers less the zero point, in int32."""
        return self.values.astype("int32") - self.zero

    @property
    def real(self) -> np.ndarray:
        """The real numbers that they stand for, in float32."""
        return self.whole.astype("float32") * self.scale


def stored_constant(call: relax.Call) -> QuantizedConstant | None:
    """Return the constant of a DEQUANTIZE; ``None`` if one of its operands is none."""
    numbers, scale, zero = map(constant_of, call.args)
    if numbers is None or scale is None or zero is None:
        return None
    along = [1] * numbers.ndim
    if scale.ndim:
        along[int(call.attrs["axis"])] = -1
    return QuantizedConstant(numbers, scale.reshape(along), zero.reshape(along))
