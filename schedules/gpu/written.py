"""Kernels written in the place of a function, with its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.accesses import nodes_in
from tvm_edge.schedules.base import WORKSPACE
from tvm_edge.schedules.emit import Tensor, function
from tvm_edge.schedules.gpu.epilogue import as_vectors
from tvm_edge.schedules.open_lengths import length_of, wide

__all__ = ["buffers_of", "kernel_of", "tensors_of"]


def buffers_of(func: tirx.PrimFunc) -> list[tirx.Buffer]:
    """Return the parameters of a function that are tensors."""
    return [param for param in func.params if isinstance(param.ty, tirx.BufferType)]


def tensors_of(func: tirx.PrimFunc) -> list[Tensor]:
    """Return shape and type of its tensors."""
    return [([length_of(d) for d in b.shape], str(b.dtype)) for b in buffers_of(func)]


def kernel_of(
    func: tirx.PrimFunc,
    workspace: Sequence[Tensor],
    body: Callable[[list[Any]], None],
) -> tirx.PrimFunc:
    """Write a kernel with the parameters of `func`, and workspace after them.

    Lengths that the run tells have 64 bits in the parameters. `body` is written with the variables
    of `func`, which have 32 (:func:`~tvm_edge.schedules.open_lengths.narrow_open`).

    Parameters
    ----------
    func : PrimFunc
        Its last parameter is the only result.
    workspace : sequence of Tensor
    body : callable
        Writes the statements; called with all tensors as vectors.
    """
    tensors = [*tensors_of(func), *workspace]
    lengths = _variables(func)

    def widened(tensor: Tensor) -> Tensor:
        shape, dtype = tensor
        return [d if isinstance(d, int) else wide(d, lengths.__getitem__) for d in shape], dtype

    def write(*buffers: Any) -> None:
        for own, given in lengths.items():
            T.Bind(tirx.Cast("int32", given), var=own)
        body(as_vectors(tensors, buffers))

    params = [
        widened(([length_of(d) for d in param.shape], str(param.dtype)))
        if isinstance(param.ty, tirx.BufferType)
        else lengths[param]
        for param in func.params
    ]
    *inputs, result = params
    assert isinstance(result, tuple), "the result comes last"
    made = function(inputs, [result, *map(widened, workspace)], write).func
    return made.with_attr(WORKSPACE, len(workspace))


def _variables(func: tirx.PrimFunc) -> dict[tirx.Var, tirx.Var]:
    """Return a function's lengths, each with a variable of 64 bits."""
    found = [param for param in func.params if not isinstance(param.ty, tirx.BufferType)]
    for buffer in buffers_of(func):
        for dim in buffer.shape:
            found += nodes_in(dim, tirx.Var)
    return {var: tirx.Var(str(var.name), "int64") for var in dict.fromkeys(found)}
