"""Operators that move or compare numbers, whatever these stand for."""

from __future__ import annotations

from typing import TypeGuard

from tvm import relax

from tvm_edge.relay_passes.ir.expressions import is_call

__all__ = ["moves"]

_VIEWS = tuple(
    f"relax.{name}"
    for name in ("expand_dims", "flatten", "nn.batch_flatten", "permute_dims", "reshape", "squeeze")
)
_MOVES = (*_VIEWS, "relax.nn.max_pool2d", "relax.strided_slice")
_RESIZE = "relax.image.resize2d"


def moves(value: relax.Expr | None) -> TypeGuard[relax.Call]:
    """Return whether an operator moves or compares numbers and changes none."""
    nearest = is_call(value, _RESIZE) and value.attrs.method == "nearest_neighbor"
    return nearest or is_call(value, *_MOVES)
