"""Kernels of ArgMax and ArgMin: indices of the first largest and the first smallest element.

The ONNX standard says nothing of NaN, and ONNX Runtime's answer depends on the shape. Here the rule
is NumPy's, on every device: the first NaN of a line wins, over infinities too. With
``select_last_index`` it is the last one. Where all elements are the least of their type (minus
infinity, or 0 of uint8), the index is that of the first; TVM's kernels return -1 there.
"""

from __future__ import annotations

from tvm import relax, te, tirx

__all__ = ["arg_extremum"]

_INDEX = "int64"


def arg_extremum(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make one kernel of ``relax.argmax`` or ``relax.argmin``."""
    name = str(call.op.name).removeprefix("relax.")
    axis = call.attrs.axis
    axes = list(range(call.args[0].ty.ndim)) if axis is None else [int(axis)]
    keep = bool(call.attrs.keepdims)
    return bb.call_te(
        _first_extremum, call.args[0], name == "argmax", axes, keep, primfunc_name_hint=name
    )


def _first_extremum(x: te.Tensor, largest: bool, axes: list[int], keep: bool) -> te.Tensor:
    """Index of the extremum over `axes`, in the order of the elements."""
    rank = len(x.shape)
    axes = [axis % rank for axis in axes]
    reduced = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in axes}
    left = [axis for axis in range(rank) if axis not in reduced]

    def pair(*indices: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        kept = dict(zip(range(rank) if keep else left, indices, strict=True))
        place: tirx.Expr = tirx.const(0, _INDEX)
        for axis in axes:
            step = reduced[axis].var
            place = place * tirx.Cast(_INDEX, x.shape[axis]) + tirx.Cast(_INDEX, step)
        where = [reduced[axis].var if axis in reduced else kept[axis] for axis in range(rank)]
        return place, _key(x(*where), largest)

    def better(
        one: tuple[tirx.Expr, tirx.Expr], other: tuple[tirx.Expr, tirx.Expr]
    ) -> tuple[tirx.Expr, tirx.Expr]:
        (place, key), (other_place, other_key) = one, other
        wins = key > other_key if largest else key < other_key
        is_first = tirx.any(wins, tirx.all(key.equal(other_key), place < other_place))
        # The key may not depend on the place, which TVM's vectors store before.
        return tirx.Select(is_first, place, other_place), tirx.Select(wins, key, other_key)

    def identity(_: str, dtype: str) -> tuple[tirx.Expr, tirx.Expr]:
        # An element that is as bad comes before it.
        worst = tirx.min_value(dtype) if largest else tirx.max_value(dtype)
        return tirx.max_value(_INDEX), worst

    shape = [1 if axis in reduced else x.shape[axis] for axis in (range(rank) if keep else left)]
    reducer = te.comm_reducer(better, identity, name="argmax" if largest else "argmin")
    results = te.compute(
        shape, lambda *i: reducer(pair(*i), axis=[reduced[axis] for axis in axes]), name="extremum"
    )
    return te.compute(shape, lambda *i: results[0](*i), name="index")


def _key(value: tirx.Expr, largest: bool) -> tirx.Expr:
    """Integer in the order of the numbers, beyond which lies NaN.

    Comparisons of integers are the same on every device, and TVM vectorises no test for NaN.
    """
    dtype = str(value.ty.dtype)
    if "float" not in dtype:
        return value
    wide = dtype == "float64"
    if not wide and dtype != "float32":
        value = value.astype("float32")
    key, mantissa = ("int64", 52) if wide else ("int32", 23)
    width = 64 if wide else 32
    infinity = tirx.const((1 << (width - 1)) - (1 << mantissa), key)
    # No variables: the reduction has several copies of this.
    bits = tirx.reinterpret(key, value)
    size = bits & tirx.max_value(key)
    zero = tirx.const(0, key)
    number = tirx.Select(bits < zero, zero - size, size)
    beyond = tirx.max_value(key) if largest else tirx.min_value(key)
    return tirx.Select(size > infinity, beyond, number)
