"""Lengths of kernels are variables of their own."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_edge
from tests.onnx_models import make_model, random_input, reference
from tvm_edge.relay_passes.lower.own_lengths import own_lengths
from tvm_edge.schedules.typical import typical_lengths


@I.ir_module
class Halves:
    """Two kernels behind a stride of 2 that differ in the order of what they are given."""

    @T.prim_func(private=True, s_tir=True)
    def first(x: T.handle, h: T.int64, w: T.int64, y: T.handle):
        a = T.match_buffer(x, ((h - 1) // 2 + 1, (w - 1) // 2 + 1))
        b = T.match_buffer(y, ((h - 1) // 2 + 1, (w - 1) // 2 + 1))
        for i, j in T.grid((h - 1) // 2 + 1, (w - 1) // 2 + 1):
            with T.sblock("b"):
                v, u = T.axis.remap("SS", [i, j])
                b[v, u] = a[v, u] * T.float32(2)

    @T.prim_func(private=True, s_tir=True)
    def second(x: T.handle, w: T.int64, h: T.int64, y: T.handle):
        a = T.match_buffer(x, ((h - 1) // 2 + 1, (w - 1) // 2 + 1))
        b = T.match_buffer(y, ((h - 1) // 2 + 1, (w - 1) // 2 + 1))
        for i, j in T.grid((h - 1) // 2 + 1, (w - 1) // 2 + 1):
            with T.sblock("b"):
                v, u = T.axis.remap("SS", [i, j])
                b[v, u] = a[v, u] * T.float32(2)

    @T.prim_func(private=True, s_tir=True)
    def padded(x: T.handle, h: T.int64, y: T.handle):
        """Reads twice its length, and the number itself."""
        a = T.match_buffer(x, ((h - 1) // 2 + 1,))
        b = T.match_buffer(y, ((h - 1) // 2 * 2 + 4,), "int64")
        for i in range((h - 1) // 2 * 2 + 4):
            with T.sblock("b"):
                v = T.axis.spatial((h - 1) // 2 * 2 + 4, i)
                b[v] = T.if_then_else(a[v // 4] > T.float32(0), h, v)

    @T.prim_func(private=True, s_tir=True)
    def doubled(x: T.handle, h: T.int64, y: T.handle):
        """Reads and writes one enlarged length, in tiles of four."""
        a = T.match_buffer(x, ((h - 1) // 2 * 2 + 2,))
        b = T.match_buffer(y, (((h - 1) // 2 + 2) // 2 * 4,))
        for i in range(((h - 1) // 2 + 2) // 2 * 4):
            with T.sblock("b"):
                v = T.axis.spatial(((h - 1) // 2 + 2) // 2 * 4, i)
                b[v] = T.if_then_else(v < (h - 1) // 2 * 2 + 2, a[v], T.float32(0))

    @T.prim_func(private=True, s_tir=True)
    def shuffled(x: T.handle, h: T.int64, y: T.handle):
        """Reads each second element of an enlarged length, whose half is no tensor's."""
        a = T.match_buffer(x, ((h - 1) // 2 * 2 + 2,))
        b = T.match_buffer(y, ((h - 1) // 2 * 2 + 2,))
        for i in range((h - 1) // 2 * 2 + 2):
            with T.sblock("b"):
                v = T.axis.spatial((h - 1) // 2 * 2 + 2, i)
                b[v] = a[v % ((h - 1) // 2 + 1) * 2 + v // ((h - 1) // 2 + 1)]

    @R.function
    def main(
        x: R.Tensor(("h", "w"), "float32"),
        a: R.Tensor(("(h - 1) // 2 + 1", "(w - 1) // 2 + 1"), "float32"),
        b: R.Tensor(("(h - 1) // 2 + 1",), "float32"),
        f: R.Tensor(("(h - 1) // 2 * 2 + 2",), "float32"),
    ):
        h, w = T.int64(), T.int64()
        cls = Halves
        with R.dataflow():
            like = R.Tensor(((h - 1) // 2 + 1, (w - 1) // 2 + 1), "float32")
            c = R.call_tir(cls.first, (a, h, w), like)
            d = R.call_tir(cls.second, (c, w, h), like)
            e = R.call_tir(cls.padded, (b, h), R.Tensor(((h - 1) // 2 * 2 + 4,), "int64"))
            tiles = R.Tensor((((h - 1) // 2 + 2) // 2 * 4,), "float32")
            g = R.call_tir(cls.doubled, (f, h), tiles)
            i = R.call_tir(cls.shuffled, (f, h), R.Tensor(((h - 1) // 2 * 2 + 2,), "float32"))
            R.output(d, e, g, i)
        return (d, e, g, i)


def kernels(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    return {
        str(gvar.name_hint): func
        for gvar, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


def test_lengths_are_read_from_tensors() -> None:
    with typical_lengths({"h": 9, "w": 33}):
        made, typical = own_lengths(Halves)
    found = kernels(made)
    shape = found["first"].params[0].shape
    assert all(isinstance(length, tirx.Var) for length in shape)
    assert [typical[str(length.name)] for length in shape] == [5, 17]
    assert len(found["first"].params) == 2  # neither h nor w


def test_kernels_that_are_alike_then_are_one() -> None:
    assert set(kernels(own_lengths(Halves)[0])) == {"first", "padded", "doubled", "shuffled"}


def test_what_is_not_a_length_stays() -> None:
    made = kernels(own_lengths(Halves)[0])["padded"]
    a, h, b = made.params
    lines = a.shape[0]
    tvm.ir.assert_structural_equal(b.shape[0], lines * 2 + 2)
    assert str(h.name) == "h"


def test_one_enlarged_length_is_a_tensors() -> None:
    made = kernels(own_lengths(Halves)[0])["doubled"]
    (lines,), (tiles,) = (param.shape for param in made.params)
    assert isinstance(lines, tirx.Var)
    tvm.ir.assert_structural_equal(tiles, (lines + 3) // 4 * 4)


def test_a_part_of_an_enlarged_length_is_given() -> None:
    mod = own_lengths(Halves)[0]
    a, half, _ = kernels(mod)["shuffled"].params
    tvm.ir.assert_structural_equal(a.shape[0], half * 2)
    given = mod["main"].body.blocks[0].bindings[-1].value.args[1].fields[1]
    tvm.ir.assert_structural_equal(given, (mod["main"].params[0].ty.shape[0] - 1) // 2 + 1)


def test_calls_give_what_is_taken() -> None:
    mod = own_lengths(Halves)[0]
    counts = [
        len(binding.value.args[1].fields)
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]
    assert counts == [1, 1, 2, 1, 2]
    relax.analysis.well_formed(mod)  # or it raises


@pytest.mark.parametrize("shape", [(1, 3, 17, 33), (2, 3, 8, 5)])
def test_behind_strides(shape: tuple[int, ...]) -> None:
    """Each size halves twice, is doubled, and is added to one that was not."""
    model = make_model(
        [
            helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2], pads=[1] * 4),
            helper.make_node("Conv", ["a", "v"], ["b"], strides=[2, 2], pads=[1] * 4),
            helper.make_node("Resize", ["b", "", "scales"], ["c"], mode="nearest"),
            helper.make_node("Relu", ["c"], ["y"]),
        ],
        {"x": ("n", 3, "h", "w")},
        ["y"],
        {
            "w": random_input((8, 3, 3, 3), 1),
            "v": random_input((8, 8, 3, 3), 2),
            "scales": np.float32([1, 1, 2, 2]),
        },
    )
    compiled = tvm_edge.compile(model, "llvm")
    inputs = {"x": random_input(shape, 3)}
    expected = reference(model, inputs)["y"]
    np.testing.assert_allclose(compiled.run(inputs)["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 3, 17, 33), (2, 3, 8, 6), (1, 3, 1, 2)])
def test_winograd_of_enlarged_images(shape: tuple[int, ...]) -> None:
    """Twice a half of the size: an even number of lines, in tiles of four."""
    model = make_model(
        [
            helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2], pads=[1] * 4),
            helper.make_node("Resize", ["a", "", "scales"], ["b"], mode="nearest"),
            helper.make_node("Conv", ["b", "v"], ["c"], pads=[1] * 4),
            helper.make_node("Sigmoid", ["c"], ["s"]),
            helper.make_node("Mul", ["c", "s"], ["d"]),
            helper.make_node("Add", ["b", "d"], ["y"]),
        ],
        {"x": ("n", 3, "h", "w")},
        ["y"],
        {
            "w": random_input((64, 3, 3, 3), 1),
            "v": random_input((64, 64, 3, 3), 2),
            "scales": np.float32([1, 1, 2, 2]),
        },
    )
    dims = ("n", 3, tvm_edge.Dim("h", typical=112), tvm_edge.Dim("w", typical=112))
    compiled = tvm_edge.compile(model, "llvm", input_shapes={"x": dims})
    assert "winograd" in {kernel.rule for kernel in compiled.report.kernels}
    inputs = {"x": random_input(shape, 3)}
    expected = reference(model, inputs)["y"]
    error = np.abs(compiled.run(inputs)["y"] - expected).max()
    assert error < 1e-5 * np.abs(expected).max()
