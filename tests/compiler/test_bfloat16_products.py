"""Matrix products in bfloat16: by pairs where the matrix is constant, against NumPy in float64."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tvm import s_tir, tirx

import tvm_edge
from tests.bfloat16 import (
    ARM,
    AVX2,
    EPSILON,
    HAS_PAIRS,
    ZEN4,
    kernels,
    rounded,
    scheduled,
    weights,
)
from tests.onnx_models import make_model, relative_error
from tvm_edge.schedules.accesses import constant, nodes_in
from tvm_edge.schedules.panels import pack_matrix

Product = tuple[Sequence[int | str], int, int]

# Rows, K and N: steps of one product, odd ones, columns that fill no vector or no panel; few rows,
# rows that two cores share, sums in parts, batches, and a matrix that no cache holds.
PRODUCTS: Sequence[Product] = (
    ((1,), 515, 1030),
    ((2,), 768, 1000),
    ((3,), 1, 16),
    ((4,), 2, 17),
    ((5,), 3, 33),
    ((6,), 40, 64),
    ((7,), 65, 77),
    ((197,), 192, 97),
    ((49,), 3000, 97),
    ((700,), 36, 40),
    ((2, 3, 5), 41, 48),
    ((64, 1), 70, 64),
    ((3,), 4097, 3000),
)
OPEN: Sequence[Product] = ((("r",), 40, 96), ((1, "r"), 41, 75), (("n", "r"), 39, 64))


def chain(products: Sequence[Product]) -> onnx.ModelProto:
    """Each product with a bias, an activation and a residual of its own."""
    nodes, inputs, values, outputs = [], {}, {}, []
    for i, (rows, k, n) in enumerate(products):
        nodes += [
            helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"p{i}"], name=f"product{i}"),
            helper.make_node("Add", [f"p{i}", f"b{i}"], [f"a{i}"]),
            helper.make_node("Gelu", [f"a{i}"], [f"g{i}"]),
            helper.make_node("Add", [f"g{i}", f"r{i}"], [f"y{i}"]),
        ]
        inputs |= {f"x{i}": (*rows, k), f"r{i}": (*rows, n)}
        values |= {f"w{i}": weights(n, k).T.copy(), f"b{i}": weights(n, 1)[:, 0]}
        outputs.append(f"y{i}")
    return make_model(nodes, inputs, outputs, values, opset=20)


def random_inputs(products: Sequence[Product], **lengths: int) -> dict[str, np.ndarray]:
    random, made = np.random.default_rng(), {}
    for i, (rows, k, n) in enumerate(products):
        shape = [lengths[each] if isinstance(each, str) else each for each in rows]
        for name, columns in (("x", k), ("r", n)):
            made[f"{name}{i}"] = random.standard_normal((*shape, columns)).astype("float32")
    return made


def expected(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], *, operands: bool = True
) -> dict[str, np.ndarray]:
    """Results in float64; `operands` of products are rounded."""
    values = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    erf = np.vectorize(math.erf, otypes=["float64"])
    made = {}
    for i in range(len(values) // 2):
        x = rounded(inputs[f"x{i}"]) if operands else inputs[f"x{i}"]
        total = x.astype("float64") @ values[f"w{i}"] + values[f"b{i}"]
        made[f"y{i}"] = total * (1 + erf(total / math.sqrt(2))) / 2 + inputs[f"r{i}"]
    return made


@pytest.mark.parametrize("target", ["llvm", AVX2], ids=["here", "widened"])
def test_products_are_of_rounded_operands(target: Any) -> None:
    """Products of what bfloat16 holds, but for the order of additions in float32."""
    model = chain(PRODUCTS)
    compiled = tvm_edge.compile(
        model, target, precision="bfloat16", tuning_logs=False, num_threads=2
    )
    inputs = random_inputs(PRODUCTS)
    results = compiled.run(inputs)
    right = expected(model, inputs)
    unrounded = expected(model, inputs, operands=False)
    for i, product in enumerate(PRODUCTS):
        # The result keeps the digits of its accumulators.
        assert relative_error(results[f"y{i}"], right[f"y{i}"]) < 1e-5, product
    errors = [relative_error(results[name], unrounded[name]) for name in unrounded]
    assert max(errors) > EPSILON / 50
    rules = [kernel.rule for kernel in compiled.report.kernels]
    paired = HAS_PAIRS and target == "llvm"
    assert rules.count("dense_pairs") == (len(PRODUCTS) if paired else 0)
    assert rules.count("dense") == (0 if paired else len(PRODUCTS))


@pytest.mark.parametrize("target", ["llvm", AVX2], ids=["here", "widened"])
def test_products_of_an_open_number_of_rows(target: Any) -> None:
    """Whole tiles, small ones, and the columns that do not fill a panel."""
    model = chain(OPEN)
    compiled = tvm_edge.compile(model, target, precision="bfloat16", tuning_logs=False)
    rules = [kernel.rule for kernel in compiled.report.kernels]
    assert ("dense_pairs" in rules) == (HAS_PAIRS and target == "llvm")
    assert rules.count("dense_pairs") + rules.count("dense") == len(OPEN)
    for rows in (1, 2, 3, 5, 8, 9, 23, 64):
        inputs = random_inputs(OPEN, r=rows, n=2)
        results = compiled.run(inputs)
        right = expected(model, inputs)
        for name, value in results.items():
            assert relative_error(value, right[name]) < 1e-5, (name, rows)


@pytest.mark.parametrize(
    ("target", "multiplies"), [(ZEN4, "vdpbf16ps"), (ARM, "bfdot")], ids=["zen4", "arm"]
)
def test_pairs_are_multiplied_by_the_instruction(target: dict[str, Any], multiplies: str) -> None:
    """Also on CPUs that this one is not; no product is left to float32."""
    products = [PRODUCTS[6], PRODUCTS[8], PRODUCTS[9], *OPEN]
    # Without activations, which have multiply-adds of their own.
    model = chain(products)
    for node in model.graph.node:
        if node.op_type == "Gelu":
            node.op_type = "Relu"
    code = {name: text for name, text in kernels(model, target).items() if "dense" in name}
    assert len(code) == len(products)
    for name, text in code.items():
        assert text.count(f"\t{multiplies}\t") >= 8, name
        assert not re.search(r"\t(vfmadd\d+ps|fmla|fmadd)\t", text), name


def test_small_tiles_of_open_rows_end_where_the_rows_do() -> None:
    """Nothing is read beyond the rows, and no instruction waits for a condition."""
    ((name, func),) = (
        each for each in scheduled(chain(OPEN[:1]), ZEN4).items() if "dense" in each[0]
    )
    blocks = nodes_in(func.body, s_tir.SBlockRealize)
    updates = [node for node in blocks if "update" in node.block.name_hint]
    assert all(constant(node.predicate) == 1 for node in updates)
    tiles = [node for node in updates if node.block.match_buffers]  # those of the instruction
    assert len(tiles) == 2, name  # of a whole tile, and of a small one
    (row, *_), (small_row, *_) = (tile.block.match_buffers[0].source.region for tile in tiles)
    assert not nodes_in(row.min, tirx.Min)
    assert nodes_in(small_row.min, tirx.Min)


def test_a_row_that_is_no_number_leaves_others_alone() -> None:
    """Odd rows are filled up with zeros, not with the next row."""
    product = ((6,), 41, 48)
    compiled = tvm_edge.compile(
        chain([product]), "llvm", precision="bfloat16", tuning_logs=False, num_threads=2
    )
    inputs = random_inputs([product])
    inputs["x0"][3] = np.nan
    wrong = np.isnan(compiled.run(inputs)["y0"]).any(axis=1)
    np.testing.assert_array_equal(wrong, np.arange(6) == 3)


def test_pairs_stand_side_by_side_in_panels() -> None:
    matrix = np.arange(1, 16, dtype="float32").reshape(5, 3)
    panels = pack_matrix(matrix, 2, 2)
    assert panels.shape == (2, 3, 2, 2)  # panels, pairs, columns, numbers of a pair
    whole = panels.transpose(1, 3, 0, 2).reshape(6, 4)
    np.testing.assert_array_equal(whole[:5, :3], matrix)
    assert not whole[5].any() and not whole[:, 3].any()
