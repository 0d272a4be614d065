"""Composite operators: Relax operators of our own, kept whole until after placement.

TVM's C++ registry takes operators from Python: an operator is a name, a type rule and attributes.
A pass that knows the operator lowers it (:mod:`tvm_edge.relay_passes.lower.lower_operators`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

__all__ = ["call", "register"]


def register(name: str, infer_type: Callable[[relax.Call, relax.BlockBuilder], relax.Type]) -> None:
    """Make `name` a pure Relax operator whose result type is ``infer_type(call, builder)``."""
    tvm.ir.register_op_attr(name, "FInferType", infer_type)
    tvm.ir.register_op_attr(name, "FPurity", True)


def call(name: str, args: list[relax.Expr], **attrs: Any) -> relax.Call:
    """A call of a registered operator with named attributes."""
    return relax.Call(tvm.ir.Op.get(name), args, tvm.ir.make_node("ir.DictAttrs", **attrs))
