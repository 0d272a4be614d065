"""Which arguments of kernels are said to be the program's own."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_edge.lowering.argument_checks import MADE
from tvm_edge.relay_passes.instructions.mark_made_arguments import MarkMade


@I.ir_module
class Calls:
    @T.prim_func(private=True, s_tir=True)
    def first(
        a: T.Buffer((4,), "float32"), w: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")
    ):
        for i in range(4):
            b[i] = a[i] * w[i]

    @T.prim_func(private=True, s_tir=True)
    def second(
        a: T.Buffer((4,), "float32"), w: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")
    ):
        for i in range(4):
            b[i] = a[i] + w[i]

    @T.prim_func(private=True, s_tir=True)
    def both(
        a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32"), c: T.Buffer((4,), "float32")
    ):
        for i in range(4):
            b[i] = a[i]
            c[i] = a[i]

    @T.prim_func(private=True, s_tir=True)
    def over(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            b[i] = b[i] + a[i]

    @T.prim_func(private=True, s_tir=True)
    def symbolic(x: T.handle, y: T.handle):
        n = T.int64()
        a = T.match_buffer(x, (n,))
        b = T.match_buffer(y, (n,))
        for i in range(n):
            b[i] = a[i]

    @R.function
    def main(x: R.Tensor((4,), "float32"), weights: R.Tuple(R.Tensor((4,), "float32"))):
        cls = Calls
        with R.dataflow():
            w = weights[0]
            a = R.call_tir(cls.first, (x, w), R.Tensor((4,), "float32"))
            b = R.call_tir(cls.second, (a, w), R.Tensor((4,), "float32"))
            c = R.call_tir(cls.second, (b, a), R.Tensor((4,), "float32"))
            d = R.call_tir(cls.both, (c,), [R.Tensor((4,), "float32"), R.Tensor((4,), "float32")])
            e = d[1]
            f = R.call_tir_inplace(cls.over, (x, e), [1], R.Tensor((4,), "float32"))
            g = R.call_tir(cls.symbolic, (f,), R.Tensor((4,), "float32"))
            R.output(g)
        return g


def made(mod: tvm.IRModule) -> dict[str, list[int] | None]:
    return {
        str(gvar.name_hint): [int(n) for n in func.attrs[MADE]] if MADE in func.attrs else None
        for gvar, func in MarkMade()(mod).functions_items()
        if not isinstance(func, relax.Function)
    }


def test_results_of_kernels_are() -> None:
    assert made(Calls) == {
        "first": [2],  # an input and a weight are not
        "second": [0, 2],  # in one of its calls the other is a weight
        "both": [0, 1, 2],
        "over": [1],  # which it overwrites
        "symbolic": [0, 1],  # their lengths are what the run has calculated
    }


def test_another_caller_that_was_given_them() -> None:
    """Its parameters are whatever it is called with."""
    mod = Calls.clone()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder(mod)
    with builder.function("other", [x]):
        with builder.dataflow():
            call = relax.call_tir(mod.get_global_var("both"), [x], [x.ty, x.ty])
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    assert made(builder.get())["both"] == [1, 2]
    assert made(builder.get())["over"] == [1]
