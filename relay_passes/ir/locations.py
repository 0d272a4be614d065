"""Locations: which node of the user's model, or which kernel, a variable holds the result of.

Passes of TVM keep the span of a variable when they rewrite what is bound to it, and compare modules
without spans. A location is therefore a span whose source says what its line counts: nodes of the
imported model, or kernels of the compilation. Names of variables are for readers alone.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import SourceName, Span

from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, all_bindings, is_call

__all__ = ["at_kernel", "at_node", "calls_by_kernel", "emit_at", "kernel_of", "node_of"]

_NODE, _KERNEL = "node", "kernel"


def at_node(index: int) -> Span:
    """Location of node `index` of the user's model."""
    return _span(_NODE, index)


def at_kernel(number: int) -> Span:
    """Location of kernel `number` of a compilation."""
    return _span(_KERNEL, number)


def node_of(var: relax.Var) -> int | None:
    """Node of the user's model whose result `var` holds, ``None`` if it holds none."""
    return _line(var, _NODE)


def kernel_of(var: relax.Var) -> int | None:
    """Kernel whose results `var` holds, ``None`` if it holds none."""
    return _line(var, _KERNEL)


def calls_by_kernel(mod: tvm.IRModule) -> dict[int, relax.Binding]:
    """Kernel calls of ``main`` by number, in execution order, those of all branches included."""
    found = {}
    for binding in all_bindings(mod["main"].body):
        number = kernel_of(binding.var)
        if number is not None and is_call(binding.value, *KERNEL_CALLS):
            found[number] = binding
    return found


def emit_at(
    builder: relax.BlockBuilder, value: relax.Expr, like: relax.Expr | None, *, output: bool = False
) -> relax.Var:
    """Bind `value` to a new variable at the location, and with the name, of the variable `like`.

    Parameters
    ----------
    builder : BlockBuilder
    value, like : Expr
        Of a `like` that is no variable there is neither.
    output : bool
        Whether blocks after this dataflow block may read it.
    """
    if not isinstance(like, relax.Var):
        return builder.emit(value)
    value = builder.normalize(value)
    inside = builder.current_block_is_dataflow() and not output
    make = relax.DataflowVar if inside else relax.Var
    var = make(builder.get_unique_name(like.name), value.ty, like.span)
    builder.emit_normalized(relax.VarBinding(var, value))
    return var


def _span(source: str, line: int) -> Span:
    return Span(SourceName(source), line, line, 0, 0)


def _line(var: relax.Var, source: str) -> int | None:
    span = var.span
    return int(span.line) if span is not None and span.source_name.name == source else None
