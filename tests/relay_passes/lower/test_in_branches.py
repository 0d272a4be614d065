"""Kernels in branches of an If and in the body of a Loop are fused like those around them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

import tvm_edge
from tests.onnx_models import random_input, reference

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def numbers(count: int) -> str:
    return ", ".join(map(str, random_input((count,), count)))


WEIGHTS = f"<float[8,8] w = {{{numbers(64)}}}, float[8] b = {{{numbers(8)}}}, float zero = {{0.0}}>"

# The inner If reads what its own branch and what the graph around it made.
BRANCHES = f"""
    g (float[2,8] x) => (float[2,8] y, float[2,8] z) {WEIGHTS} {{
        p0 = MatMul (x, w)
        first = Add (p0, b)
        sum = ReduceSum <keepdims = 0> (x)
        positive = Greater (sum, zero)
        most = ReduceMax <keepdims = 0> (first)
        large = Greater (most, zero)
        y, z = If (positive) <then_branch = t () => (float[2,8] inner, float[2,8] t1) {{
            p1 = MatMul (first, w)
            a1 = Add (p1, b)
            t1 = Relu (a1)
            inner = If (large) <then_branch = u () => (float[2,8] u2) {{
                p2 = MatMul (t1, w)
                u1 = Add (p2, b)
                u2 = Mul (u1, first)
            }}, else_branch = v () => (float[2,8] v1) {{ v1 = Neg (t1) }}>
        }}, else_branch = o () => (float[2,8] e2, float[2,8] e1) {{
            p3 = MatMul (first, w)
            e1 = Add (p3, b)
            e2 = Exp (e1)
        }}>
    }}"""

LOOP = f"""
    g (int64 n, float[2,8] x) => (float[2,8] y) {WEIGHTS} {{
        y = Loop (n, , x) <body = step (int64 i, bool c, float[2,8] s)
                => (bool c2, float[2,8] s2) {{
            product = MatMul (s, w)
            biased = Add (product, b)
            bent = Tanh (biased)
            s2 = Add (bent, x)
            c2 = Identity (c)
        }}>
    }}"""


def check(text: str, inputs: list[dict[str, np.ndarray]]) -> list[str]:
    """Compare results with ONNX Runtime's; return the names of the kernels with a product."""
    model = onnx.parser.parse_model(HEADER + text)
    compiled = tvm_edge.compile(model, "llvm", tuning_logs=False)
    for each in inputs:
        ours = compiled.run(each)
        for name, value in reference(model, each).items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-5, atol=1e-5)
    assert all(kernel.operators for kernel in compiled.report.kernels)
    return [kernel.name for kernel in compiled.report.kernels if "matmul" in kernel.name]


def test_branches_of_several_results_and_a_nested_one() -> None:
    x = np.abs(random_input((2, 8), 5))
    names = check(BRANCHES, [{"x": x}, {"x": -x}])
    assert len(names) == 4 and all("_add" in name for name in names)


def test_the_body_of_a_loop() -> None:
    x = random_input((2, 8), 5)
    (name,) = check(LOOP, [{"n": np.array(steps), "x": x} for steps in (0, 1, 4)])
    assert "_add" in name and "tanh" in name
