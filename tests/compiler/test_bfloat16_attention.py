"""Products of two activations in bfloat16, attention's among them, against NumPy in float64."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.bfloat16 import ARM, AVX2, EPSILON, HAS_PAIRS, ZEN4, kernels, rounded
from tests.onnx_models import make_model, relative_error

Shape = tuple[int, ...]

# Steps of no whole pair, columns of no whole vector or panel; batches, few of them and many, and
# rows and columns that are a whole number of tiles.
BY_PAIRS: Sequence[tuple[Shape, Shape]] = (
    ((9, 1), (1, 16)),
    ((20, 40), (40, 48)),
    ((23, 41), (41, 49)),
    ((3, 197, 64), (3, 64, 197)),
    ((3, 197, 197), (3, 197, 64)),
    ((1, 2, 1039, 24), (1, 2, 24, 1039)),
    ((2, 6, 49, 32), (2, 6, 32, 49)),
    ((2, 6, 49, 49), (2, 6, 49, 33)),
    ((1, 192, 320), (1, 320, 256)),
    ((2, 3, 31, 39), (39, 70)),
    ((40, 3000), (3000, 33)),
)
# Few rows, few columns, batches that one operand repeats.
WIDENED: Sequence[tuple[Shape, Shape]] = (
    *(((3, rows, 40), (3, 40, rows)) for rows in range(1, 8)),
    ((20, 40), (40, 3)),
    ((1, 20, 40), (3, 40, 48)),
    ((20, 40), (3, 40, 48)),
    ((20, 40), (20, 40, 48)),
    ((3, 3, 20, 40), (3, 40, 48)),
    ((20, 40), (40,)),  # TVM reshapes its result, which is stored before
)


def products(shapes: Sequence[tuple[Shape, Shape]]) -> onnx.ModelProto:
    nodes, inputs = [], {}
    for i, (left, right) in enumerate(shapes):
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"y{i}"], name=f"p{i}"))
        inputs |= {f"x{i}": left, f"w{i}": right}
    return make_model(nodes, inputs, [f"y{i}" for i in range(len(shapes))])


def random_inputs(model: onnx.ModelProto, **lengths: int) -> dict[str, np.ndarray]:
    random, made = np.random.default_rng(5), {}
    for each in model.graph.input:
        dims = each.type.tensor_type.shape.dim
        shape = [lengths[d.dim_param] if d.dim_param else d.dim_value for d in dims]
        made[each.name] = random.standard_normal(shape).astype("float32")
    return made


def compiled(model: onnx.ModelProto, target: Any = "llvm", threads: int = 2) -> Any:
    return tvm_edge.compile(
        model, target, precision="bfloat16", tuning_logs=False, num_threads=threads
    )


def rules(model: Any) -> list[str]:
    return [kernel.rule for kernel in model.report.kernels]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("target", ["llvm", AVX2], ids=["here", "widened"])
def test_products_of_two_inputs_are_of_rounded_operands(target: Any, threads: int) -> None:
    shapes = [*BY_PAIRS, *WIDENED]
    model = products(shapes)
    built, inputs = compiled(model, target, threads), random_inputs(model)
    paired = HAS_PAIRS and target == "llvm"
    assert rules(built).count("dense_pairs") == (len(BY_PAIRS) if paired else 0)
    results = built.run(inputs)
    for i, each in enumerate(shapes):
        x, w = (rounded(inputs[f"{name}{i}"]).astype("float64") for name in "xw")
        assert relative_error(results[f"y{i}"], x @ w) < (EPSILON if w.ndim == 1 else 1e-5), each


@pytest.mark.parametrize(
    ("target", "multiplies", "packs"),
    [(ZEN4, "vdpbf16ps", "(vpermt2w|vpermw)"), (ARM, "bfdot", "(zip1|st2|tbl)")],
    ids=["zen4", "arm"],
)
def test_pairs_are_packed_and_multiplied_by_instructions(
    target: dict[str, Any], multiplies: str, packs: str
) -> None:
    """Also on CPUs that this one is not; no product is left to float32."""
    model = products([BY_PAIRS[i] for i in (1, 3, 4, 7, 8)])
    code = {name: text for name, text in kernels(model, target).items() if "dense" in name}
    assert len(code) == 5
    for name, text in code.items():
        assert len(re.findall(rf"\t{multiplies}\t", text)) >= 8, name
        assert re.search(rf"\t{packs}\t", text), name
        assert not re.search(r"\t(vfmadd\d+ps|fmla|fmadd)\t", text), name


@pytest.mark.parametrize(
    ("target", "multiplies"), [(ZEN4, "vdpbf16ps"), (ARM, "bfdot")], ids=["zen4", "arm"]
)
def test_attention_in_one_kernel_multiplies_pairs(target: dict[str, Any], multiplies: str) -> None:
    code = kernels(attention(2, 1039, 48, None), target)
    ((name, text),) = ((name, text) for name, text in code.items() if "attention" in name)
    assert not any("dense" in each or "matmul" in each for each in code)
    assert len(re.findall(rf"\t{multiplies}\t", text)) >= 16, name  # of scores, and of values


def attention(
    heads: int, rows: int, depth: int, mask: Sequence[int | str] | None, length: int | str = 0
) -> onnx.ModelProto:
    """Keys are ``[H, T, D]``, and transposed, as exporters write it; values have an even D."""
    tokens = length or rows
    nodes = [
        helper.make_node("Mul", ["q", "scale"], ["s"]),
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["s", "t"], ["z"], name="scores"),
    ]
    inputs = {name: (1, heads, tokens, depth) for name in "qk"}
    inputs["v"] = (1, heads, tokens, depth + depth % 2)
    if mask is not None:
        nodes.append(helper.make_node("Add", ["z", "mask"], ["a"]))
        inputs["mask"] = tuple(mask)
    nodes += [
        helper.make_node("Softmax", ["z" if mask is None else "a"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"], name="mean"),
    ]
    # A power of two: what it multiplies is rounded alike before and after.
    return make_model(nodes, inputs, ["y"], {"scale": np.array(0.125, "float32")})


def expected(values: dict[str, np.ndarray]) -> np.ndarray:
    wide = {name: rounded(value).astype("float64") for name, value in values.items()}
    scores = wide["q"] @ wide["k"].swapaxes(-1, -2) * 0.125 + values.get("mask", 0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ wide["v"]


ATTENTION = ["attention"]  # one kernel, where a core's cache does not hold the scores
APART = ["dense_pairs"] * 2


@pytest.mark.parametrize(
    ("heads", "rows", "depth", "masked", "rule"),
    [
        (3, 1, 8, False, []),
        (3, 5, 17, True, []),
        (3, 7, 64, False, []),
        (3, 49, 32, True, APART),
        (3, 197, 64, False, APART),
        (1, 197, 33, True, APART),
        (2, 1039, 48, False, ATTENTION),
        (1, 1056, 16, True, ATTENTION),
        (1, 1056, 31, False, APART),
        (2, 1039, 24, True, APART),
    ],
)
def test_attention(heads: int, rows: int, depth: int, masked: bool, rule: list[str]) -> None:
    """Causal where it is masked. Weights are rounded, by half a unit each; scores are not."""
    model = attention(heads, rows, depth, (1, 1, rows, rows) if masked else None)
    values, built = random_inputs(model), compiled(model)
    if masked:
        values["mask"] = np.triu(np.full((rows, rows), -np.inf, "float32"), 1)[None, None]
    if HAS_PAIRS and rule:
        products = ("attention", "dense", "dense_pairs")
        assert [each for each in rules(built) if each in products] == rule
    assert relative_error(built.run(values)["y"], expected(values)) < EPSILON


def test_attention_of_an_open_length() -> None:
    model = attention(2, 0, 24, None, "tokens")
    built = compiled(model)
    for rows in (1, 3, 6, 7, 33, 64):
        values = random_inputs(model, tokens=rows)
        assert relative_error(built.run(values)["y"], expected(values)) < EPSILON, rows


def test_a_row_that_is_no_number_leaves_others_alone() -> None:
    """Odd rows are filled up with zeros, not with the next row."""
    model = products([((16, 41), (41, 48))])
    inputs = random_inputs(model)
    inputs["x0"][3] = np.nan
    wrong = np.isnan(compiled(model).run(inputs)["y0"]).any(axis=1)
    np.testing.assert_array_equal(wrong, np.arange(16) == 3)
