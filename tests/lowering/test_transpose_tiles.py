"""Tiles transposed by shuffles: moves of axes against NumPy, and where tiles are made."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import te, tirx

import tvm_edge
from tests.onnx_models import make_model
from tvm_edge.hardware import resolve_target
from tvm_edge.lowering import cpu_pipeline
from tvm_edge.schedules.accesses import nodes_in
from tvm_edge.schedules.cpu import schedule

_HASWELL = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}
TARGETS = ["llvm", _HASWELL] if platform.machine() == "x86_64" else ["llvm"]

CASES: Sequence[tuple[Sequence[int], Sequence[int], str]] = (
    ((2, 32, 12, 12), (0, 2, 3, 1), "float32"),  # whole tiles, of two axes
    ((1, 11, 6, 32), (0, 3, 1, 2), "int32"),
    ((1, 24, 7, 7), (0, 2, 3, 1), "float32"),  # seven rows, vectors of 16 and 8
    ((37, 41), (1, 0), "float32"),  # tiles that overlap
    ((12, 37), (1, 0), "float32"),
    ((2, 5, 40), (0, 2, 1), "int32"),  # a vector of four and a single lane
    ((3, 5, 19), (2, 1, 0), "int64"),
    ((1, 4, 13, 6), (0, 3, 2, 1), "float32"),
)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target)[-10:-2])
def test_moves_of_axes_with_what_follows(target: Any) -> None:
    nodes, inputs, kinds, values = [], {}, {}, {}
    random = np.random.default_rng()
    for i, (shape, perm, dtype) in enumerate(CASES):
        nodes += [
            helper.make_node("Transpose", [f"x{i}"], [f"t{i}"], perm=perm),
            helper.make_node("Add", [f"t{i}", f"t{i}"], [f"y{i}"]),
        ]
        inputs[f"x{i}"] = tuple(shape)
        kinds[f"x{i}"] = kinds[f"y{i}"] = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        values[f"x{i}"] = random.integers(-1000, 1000, shape).astype(dtype)
    results = [f"y{i}" for i in range(len(CASES))]
    model = make_model(nodes, inputs, results, dtypes=kinds)
    found = tvm_edge.compile(model, target, tuning_logs=False).run(values)
    for i, (_, perm, _) in enumerate(CASES):
        expected = 2 * values[f"x{i}"].transpose(perm)
        np.testing.assert_array_equal(found[f"y{i}"], expected, err_msg=str(CASES[i]))


def _shuffles(shape: Sequence[int], element: Any, result: Sequence[int]) -> int:
    """Count the shuffles of a kernel on a CPU of 512-bit vectors."""
    data = te.placeholder(shape, "float32", "data")
    func = te.create_prim_func([data, te.compute(result, lambda *i: element(data, *i))])
    resolved = resolve_target({"kind": "llvm", "mcpu": "skylake-avx512"})
    names = [each.info.name for each in cpu_pipeline.PASSES]
    passes = cpu_pipeline.PASSES[: names.index("tirx.VectorizeLoop")]
    scheduled = schedule(func, resolved.spec).func
    attrs = {"target": resolved.target, "global_symbol": "main"}
    mod = tvm.transform.Sequential(passes)(tvm.IRModule({"main": scheduled.with_attrs(attrs)}))
    return len(nodes_in(mod["main"], tirx.Shuffle))


def test_a_tile_takes_four_shuffles_for_each_vector() -> None:
    assert _shuffles((64, 64), lambda x, i, j: x[j, i], (64, 64)) == 4 * 16


def test_tiles_that_a_condition_guards_are_left_alone() -> None:
    def padded(x: te.Tensor, i: tirx.Expr, j: tirx.Expr) -> tirx.Expr:
        return tirx.if_then_else(j < 60, x[j, i], tirx.const(0, "float32"))

    assert _shuffles((60, 64), padded, (64, 64)) == 0
