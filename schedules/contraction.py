"""Sums of products and pooling windows, recognised by how they index memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import ir, s_tir, tirx

from tvm_edge.schedules.accesses import coefficient, constant, nodes_in, uses
from tvm_edge.schedules.words import factors_of

__all__ = ["Contraction", "is_product", "match_contraction", "match_pooling"]


@dataclass(frozen=True)
class Contraction:
    """``out[...] += data[...] * weight[...]`` with `data` contiguous along the output's last axis.

    A convolution in NCHW, a product with a matrix stored [K, N] (`data`) or a batch of those.
    Variables are given by their position in the block, which is that of their loop.

    Attributes
    ----------
    data : TensorLoad
        The operand whose neighbouring elements are the lanes of a vector.
    weight : TensorLoad or None
        The operand of which all lanes use one element; ``None`` for pooling.
    columns : int
        The output's last variable, which also moves along the last axis of `data`.
    lines : int or None
        The variable of the axis before that, if `weight` does not depend on it.
    channels : int or None
        The variable of `weight` that `data` does not depend on, or only by groups.
    outer : tuple[int, ...]
        The other spatial variables: batch, channels of a depthwise convolution, depth.
    reduction : tuple[int, ...]
        Variables summed over.
    group : int
        Consecutive channels that use the same elements of `data`; 0 for all of an open number.
    strides : tuple[int, int]
        Elements of `data` per line and column of the output.
    window : tuple[int, ...]
        Those of `reduction` that move along the lines and columns of `data`.
    data_factor : int
        Which factor of the product `data` is, 0 or 1.
    """

    data: ir.TensorLoad
    weight: ir.TensorLoad | None
    columns: int
    lines: int | None
    channels: int | None
    outer: tuple[int, ...]
    reduction: tuple[int, ...]
    group: int
    strides: tuple[int, int]
    window: tuple[int, ...]
    data_factor: int = 0

    @property
    def channel_sum(self) -> tuple[int, ...]:
        """Variables summed over that are not part of the window: input channels, K."""
        return tuple(p for p in self.reduction if p not in self.window)

    def uses_data(self, var: tirx.Var) -> bool:
        """Return whether a variable of the block indexes `data`."""
        return uses(list(self.data.indices), var)

    def moved(self, block: s_tir.SBlock, position: dict[int, int]) -> Contraction:
        """The contraction after variables were dropped or fused.

        Parameters
        ----------
        block : SBlock
            The block as it is now.
        position : dict[int, int]
            Where each variable that is left went.
        """

        def to(positions: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(position[p] for p in positions if p in position)

        data = _factors(block)[self.data_factor]
        assert data is not None
        return replace(
            self,
            data=data,
            columns=position[self.columns],
            lines=None if self.lines is None else position.get(self.lines),
            channels=None if self.channels is None else position[self.channels],
            outer=to(self.outer),
            reduction=to(self.reduction),
            window=to(self.window),
        )


def _size(block: s_tir.SBlock, position: int) -> int:
    """Extent of a variable, 0 if it is symbolic."""
    return constant(block.iter_vars[position].dom.extent) or 0


def match_contraction(block: s_tir.SBlock, *, open_axes: bool = False) -> Contraction | None:
    """Recognise a sum of products that a register tile computes; ``None`` for anything else.

    `open_axes` are for tiles that may end anywhere: lines, columns and rows of symbolic extents are
    then as good as others. Without them a contraction has columns of known number, and symbolic
    axes are like a batch.
    """
    factors = _factors(block)
    if not is_product(block) or (columns := _columns(block)) is None:
        return None
    for i, weight in enumerate(reversed(factors)):
        if not uses(list(weight.indices), block.iter_vars[columns].var):
            found = _match_operands(block, factors[i], weight, columns, open_axes)
            return None if found is None else replace(found, data_factor=i)
    return None


def is_product(block: s_tir.SBlock) -> bool:
    """Return whether a reduction sums products of two loads, or of words that are loaded."""
    factors = _factors(block)
    return len(factors) == 2 and None not in factors


def _factors(block: s_tir.SBlock) -> list[ir.TensorLoad | None]:
    return [_load(factor) for factor in factors_of(block) or ()]


def match_pooling(block: s_tir.SBlock, *, open_axes: bool = False) -> Contraction | None:
    """Recognise a sum, maximum or minimum of loads; ``None`` for anything else.

    `open_axes` are as in :func:`match_contraction`.
    """
    body = block.body
    if not isinstance(body, tirx.BufferStore):
        return None
    if not isinstance(body.value, tirx.Add | tirx.Max | tirx.Min):
        return None
    total, data = _load(body.value.a), _load(body.value.b)
    columns = _columns(block)
    if columns is None or total is None or data is None or not total.source.same_as(body.buffer):
        return None
    return _match_operands(block, data, None, columns, open_axes)


def _load(expr: tirx.Expr) -> ir.TensorLoad | None:
    value = expr.value if isinstance(expr, tirx.Cast) else expr
    return value if isinstance(value, ir.TensorLoad) else None


def _columns(block: s_tir.SBlock) -> int | None:
    """Position of the variable that is the last index of a block's output."""
    if not block.body.indices:
        return None
    last = block.body.indices[-1]
    return next((p for p, v in enumerate(block.iter_vars) if v.var.same_as(last)), None)


def _match_operands(
    block: s_tir.SBlock,
    data: ir.TensorLoad,
    weight: ir.TensorLoad | None,
    columns: int,
    open_axes: bool,
) -> Contraction | None:
    variables = [v.var for v in block.iter_vars]
    reduction = tuple(
        p for p, v in enumerate(block.iter_vars) if v.iter_type == tirx.IterVar.CommReduce
    )
    column_stride = _coefficient(data.indices[-1], variables[columns])
    if not column_stride or any(uses(i, variables[columns]) for i in list(data.indices)[:-1]):
        return None
    sizes = [_size(block, p) for p in range(len(variables))]
    if not all(sizes[p] for p in reduction):
        return None  # symbolic or empty
    tiled = [size > 0 for size in sizes]
    if open_axes:
        tiled = [constant(var.dom.extent) != 0 for var in block.iter_vars]
    if not tiled[columns]:
        return None
    lines, line_stride = None, 1
    window_axes = [data.indices[-1]]
    channels, group = None, 1
    for p, var in enumerate(variables):
        if p in reduction or p == columns or not tiled[p]:
            continue  # a symbolic axis is not tiled
        if weight is None or not uses(list(weight.indices), var):
            if len(data.indices) > 1 and (step := _coefficient(data.indices[-2], var)):
                lines, line_stride = p, step
                window_axes.append(data.indices[-2])
        elif not uses(list(data.indices), var):
            if channels is None or sizes[p] != 1:
                channels, group = p, sizes[p]
        elif (per_group := _group(data, var)) > 1:
            channels, group = p, per_group
    window = tuple(p for p in reduction if any(uses(axis, variables[p]) for axis in window_axes))
    taken = {columns, lines, channels, *reduction}
    outer = tuple(p for p in range(len(variables)) if p not in taken)
    return Contraction(
        data,
        weight,
        columns,
        lines,
        channels,
        outer,
        reduction,
        group,
        (line_stride, column_stride),
        window,
    )


def _coefficient(index: tirx.Expr, var: tirx.Var) -> int | None:
    """Coefficient of `var` in an index; ``None`` if it is not there or not linear."""
    if not uses(index, var):
        return None
    return coefficient(index, var)


def _group(data: ir.TensorLoad, var: tirx.Var) -> int:
    """`g` where `var` indexes `data` as ``var // g``, 1 where it does so itself."""
    quotients = nodes_in(list(data.indices), tirx.FloorDiv)
    sizes = (constant(node.b) for node in quotients if node.a.same_as(var))
    return max((size for size in sizes if size is not None), default=1)
