"""Kernels written in the place of a function, with its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.base import WORKSPACE
from tvm_edge.schedules.emit import Kernel, Tensor, function
from tvm_edge.schedules.gpu.epilogue import as_vectors
from tvm_edge.schedules.open_lengths import NARROW, length_of, variables_in, wide

__all__ = ["buffers_of", "kernel_of", "tensors_of", "written"]


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

    Parameters
    ----------
    func : PrimFunc
        Its last parameter is the only result.
    workspace : sequence of Tensor
    body : callable
        As for :func:`written`.
    """
    *inputs, result = (
        ([length_of(d) for d in param.shape], str(param.dtype))
        if isinstance(param.ty, tirx.BufferType)
        else param
        for param in func.params
    )
    assert isinstance(result, tuple), "the result comes last"
    made = written(inputs, [result, *workspace], body).func
    return made.with_attr(WORKSPACE, len(workspace))


def written(
    inputs: Sequence[Tensor | tirx.Var],
    outputs: Sequence[Tensor],
    body: Callable[[list[Any]], None],
) -> Kernel:
    """Write a kernel of tensors whose lengths have 32 bits where only the run tells them.

    They have 64 in its parameters.

    Parameters
    ----------
    inputs, outputs
        As for :func:`~tvm_edge.schedules.emit.function`.
    body : callable
        Writes the statements; called with all tensors as vectors.
    """
    tensors = [each for each in (*inputs, *outputs) if isinstance(each, tuple)]
    scalars = [each for each in inputs if not isinstance(each, tuple)]
    found = variables_in(length for shape, _ in tensors for length in shape)
    lengths = {var: tirx.Var(str(var.name), "int64") for var in dict.fromkeys([*scalars, *found])}

    def widened(tensor: Tensor) -> Tensor:
        shape, dtype = tensor
        return [d if isinstance(d, int) else wide(d, lengths.__getitem__) for d in shape], dtype

    def write(*buffers: Any) -> None:
        for own, given in lengths.items():
            T.Bind(tirx.Cast("int32", given), var=own)
        body(as_vectors(tensors, buffers))

    params = [widened(each) if isinstance(each, tuple) else lengths[each] for each in inputs]
    made = function(params, list(map(widened, outputs)), write)
    return replace(made, func=made.func.with_attr(NARROW, True)) if lengths else made
