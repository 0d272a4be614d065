"""Loops of a number of steps that only the run tells, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import tvm_edge
from tests.marks import needs_opencl
from tests.onnx_models import random_input, reference

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'

TARGETS = ["llvm", "opencl"]

MODELS = {
    "state and rows": """
        g (int64 n, float[2,8] x) => (float[2,8] y, float[k,2] rows)
        <float[8,8] w> {
            last, rows = Loop (n, , x) <body = b (int64 i, bool c, float[2,8] s)
                => (bool c2, float[2,8] s2, float[2] row) {
                product = MatMul (s, w)
                bent = Tanh (product)
                s2 = Add (bent, x)
                row = ReduceMax <axes = [1], keepdims = 0> (s2)
                c2 = Identity (c)
            }>
            y = Relu (last)
        }""",
    "append": """
        g (int64 n, float[9,4] x) => (float[k,4] y) {
            none = Constant <value = float[0,4] {}> ()
            front = Constant <value = int64[1] {0}> ()
            y = Loop (n, , none) <body = b (int64 i, bool c, float[q,4] s)
                => (bool c2, float[p,4] s2) {
                row = Gather <axis = 0> (x, i)
                squared = Mul (row, row)
                wide = Unsqueeze (squared, front)
                s2 = Concat <axis = 0> (s, wide)
                c2 = Identity (c)
            }>
        }""",
    "swap": """
        g (int64 n, float[3] x, float[3] y) => (float[3] p, float[3] q, float[3] difference) {
            p, q = Loop (n, , x, y) <body = b (int64 i, bool c, float[3] s, float[3] t)
                => (bool c2, float[3] s2, float[3] t2) {
                s2 = Identity (t)
                t2 = Identity (s)
                c2 = Identity (c)
            }>
            difference = Sub (p, q)
        }""",
    "nested": """
        g (int64 n, float[4,5] x) => (float[4,5] y) {
            y = Loop (n, , x) <body = outer (int64 i, bool c, float[4,5] s)
                => (bool c2, float[4,5] s2) {
                t = Loop (i, , s) <body = inner (int64 j, bool d, float[4,5] a)
                    => (bool d2, float[4,5] a2) {
                    number = CastLike (j, a)
                    half = Constant <value_float = 0.5> ()
                    sum = Add (a, number)
                    a2 = Mul (sum, half)
                    d2 = Identity (d)
                }>
                s2 = Add (t, x)
                c2 = Identity (c)
            }>
        }""",
    "branch of an If": """
        g (int64 n, float[4] x) => (float[4] y) {
            three = Constant <value_int = 3> ()
            many = Less (three, n)
            y = If (many) <
                then_branch = t () => (float[4] a) {
                    a = Loop (n, , x) <body = b (int64 i, bool c, float[4] s)
                        => (bool c2, float[4] s2) {
                        s2 = Sin (s)
                        c2 = Identity (c)
                    }>
                },
                else_branch = e () => (float[4] b) { b = Exp (x) }>
        }""",
    # The program reads `late` only after a step; before, it has neither rank nor meaning.
    "variable without a value": """
        g (int64 n, float[2,3] x) => (float[2,3] y) {
            one = Constant <value_int = 1> ()
            steps = Max (n, one)
            undefined = Constant <value = float {0}> ()
            state, late = Loop (steps, , x, undefined) <
                body = b (int64 i, bool c, float[2,3] s, float v)
                => (bool c2, float[2,3] s2, float[2,3] v2) {
                s2 = Cos (s)
                v2 = Neg (s2)
                c2 = Identity (c)
            }>
            y = Add (state, late)
        }""",
    "sequence": """
        g (int64 n, float[9,4] x) => (float[k,4] y, int64 count) {
            none = SequenceEmpty ()
            rows = Loop (n, , none) <body = b (int64 i, bool c, seq(float[4]) s)
                => (bool c2, seq(float[4]) s2) {
                row = Gather <axis = 0> (x, i)
                bent = Tanh (row)
                s2 = SequenceInsert (s, bent)
                c2 = Identity (c)
            }>
            y = ConcatFromSequence <axis = 0, new_axis = 1> (rows)
            count = SequenceLength (rows)
        }""",
}


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEADER + text)


def agree(
    model: onnx.ModelProto, compiled: tvm_edge.CompiledModel, inputs: dict[str, np.ndarray]
) -> None:
    ours = compiled.run(inputs)
    for name, expected in reference(model, inputs).items():
        assert ours[name].shape == expected.shape and ours[name].dtype == expected.dtype
        np.testing.assert_allclose(ours[name], expected, rtol=1e-5, atol=1e-6)


def inputs_of(model: onnx.ModelProto, steps: int) -> dict[str, np.ndarray]:
    """Random inputs, and the number of steps."""
    made = {
        value.name: random_input([d.dim_value for d in value.type.tensor_type.shape.dim], seed)
        for seed, value in enumerate(model.graph.input)
    }
    return {**made, "n": np.asarray(steps, "int64")}


@pytest.mark.diagonals(4)
@needs_opencl
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_steps_of_the_run(name: str, target: str) -> None:
    text = MODELS[name]
    if "<float[8,8] w>" in text:
        model = parsed(text.replace("<float[8,8] w>", ""))
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(random_input((8, 8), 7) / 3, "w")
        )
    else:
        model = parsed(text)
    compiled = tvm_edge.compile(model, target)
    for steps in (0, 1, 2, 5, 9):
        if name == "sequence" and not steps:
            continue  # ONNX Runtime concatenates no empty sequence
        agree(model, compiled, inputs_of(model, steps))


WHILE = """
    g (float[3] x, float limit) => (float[3] y) {
        true = Constant <value = bool {1}> ()
        y = Loop (, true, x) <body = b (int64 i, bool c, float[3] s) => (bool c2, float[3] s2) {
            two = Constant <value_float = 2.0> ()
            s2 = Mul (s, two)
            sum = ReduceSum <keepdims = 0> (s2)
            c2 = Less (sum, limit)
        }>
    }"""


@needs_opencl
@pytest.mark.parametrize("target", TARGETS)
def test_until_a_condition(target: str) -> None:
    model = parsed(WHILE)
    compiled = tvm_edge.compile(model, target)
    for limit in (0.0, 1.0, 1e3, 1e30):
        inputs = {"x": np.array([0.1, 0.2, 0.3], "float32"), "limit": np.array(limit, "float32")}
        agree(model, compiled, inputs)


FILTERED = """
    g (float[9,4] x) => (float[4] y, float[k,4] rows) {
        start = Constant <value = float[4] {0, 0, 0, 0}> ()
        zero = Constant <value_float = 0.0> ()
        first = Constant <value_int = 0> ()
        most = ReduceMax <axes = [1], keepdims = 0> (x)
        keep = Greater (most, zero)
        kept = Compress <axis = 0> (x, keep)
        shape = Shape (kept)
        n = Gather <axis = 0> (shape, first)
        y, rows = Loop (n, , start) <body = b (int64 i, bool c, float[4] s)
            => (bool c2, float[4] s2, float[4] row) {
            one = Constant <value_ints = [1]> ()
            axis = Constant <value_ints = [0]> ()
            from = Unsqueeze (i, axis)
            until = Add (from, one)
            slice = Slice (kept, from, until, axis)
            flat = Squeeze (slice, axis)
            sum = ReduceSum <keepdims = 0> (flat)
            negative = Less (sum, zero)
            row = If (negative) <
                then_branch = t () => (float[4] a) { a = Neg (flat) },
                else_branch = e () => (float[4] b) { b = Exp (flat) }>
            s2 = Add (s, row)
            c2 = Identity (c)
        }>
    }"""


@needs_opencl
@pytest.mark.parametrize("target", TARGETS)
def test_over_as_many_rows_as_the_run_finds(target: str) -> None:
    """The step's number is an index for kernels and a bound that the host reads."""
    model = parsed(FILTERED)
    compiled = tvm_edge.compile(model, target)
    for seed in range(3):
        agree(model, compiled, {"x": random_input((9, 4), seed)})
    agree(model, compiled, {"x": -np.ones((9, 4), "float32")})


SCAN = """
    g (int64 n, float[9,4] x, float[2,9] t, float[4] x0)
        => (float[4] y, float[4,k] a, float[k,2] b) {
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        end = Unsqueeze (n, zero)
        x1 = Slice (x, zero, end, zero)
        t1 = Slice (t, zero, end, one)
        y, a, b = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1],
            scan_input_directions = [0, 1], scan_output_axes = [1, 0],
            scan_output_directions = [0, 1],
            body = step (float[4] s, float[4] row, float[2] column)
            => (float[4] s2, float[4] kept, float[2] moved) {
            sum = Add (s, row)
            s2 = Tanh (sum)
            kept = Mul (s2, row)
            moved = Neg (column)
        }> (x0, x1, t1)
    }"""


def test_a_scan_of_a_length_of_the_run() -> None:
    """Forwards and backwards, along either axis."""
    model = parsed(SCAN)
    compiled = tvm_edge.compile(model, "llvm")
    for steps in (1, 2, 9):
        agree(model, compiled, inputs_of(model, steps))


CARRIED = """
    g (int64 n, float[2,8] x) => (float[2,8] y, float[8,8] w2) {
        w = RandomWeights ()
        y, w2 = Loop (n, , x, w) <body = b (int64 i, bool c, float[2,8] s, float[8,8] v)
            => (bool c2, float[2,8] s2, float[8,8] v2) {
            product = MatMul (s, v)
            s2 = Tanh (product)
            v2 = Identity (v)
            c2 = Identity (c)
        }>
    }"""


def test_carried_weights_are_constants() -> None:
    """Paddle's exporter makes state of the weights that a step reads."""
    model = parsed(CARRIED.replace("w = RandomWeights ()", ""))
    weights = random_input((8, 8), 7) / 3
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    compiled = tvm_edge.compile(model, "llvm")
    for steps in (0, 3):
        agree(model, compiled, inputs_of(model, steps))
    product = next(k for k in compiled.report.kernels if "matmul" in k.name)
    assert product.weights >= weights.nbytes


def test_many_steps_need_no_more_memory(tmp_path: Path) -> None:
    """Neither the stack nor what is held grows with the steps; a saved model runs them too."""
    text = MODELS["nested"].replace("Loop (i, , s)", "Loop (one, , s)")
    text = text.replace("y = Loop", "one = Constant <value_int = 1> ()\n y = Loop")
    compiled = tvm_edge.compile(parsed(text), "llvm")
    compiled.export(tmp_path / "loop.tar")
    loaded = tvm_edge.load(tmp_path / "loop.tar")
    x = random_input((4, 5))
    (y,) = loaded.run({"n": np.asarray(15_000, "int64"), "x": x}).values()
    np.testing.assert_allclose(y, 2 * x, rtol=1e-5, atol=1e-6)  # y = y / 2 + x


@needs_opencl
def test_a_loop_on_the_cpu_beside_a_gpu() -> None:
    model = parsed(FILTERED)
    compiled = tvm_edge.compile(model, "opencl", fallback=["Loop"])
    devices = {place.op_type: place.device for place in compiled.report.placements}
    assert devices["Loop"] == "llvm" and devices["ReduceMax"] == "opencl"
    agree(model, compiled, {"x": random_input((9, 4), 5)})


def test_a_rank_that_changes_cannot_be_read() -> None:
    text = MODELS["variable without a value"].replace("v2 = Neg (s2)", "v2 = Add (s2, v)")
    with pytest.raises(tvm_edge.UnsupportedOperatorError):
        tvm_edge.compile(parsed(text), "llvm")


APPENDED = """
    g (int64 n, float[9,4] x) => (float[k,4] y) {
        none = Constant <value = float[0,4] {}> ()
        y = Loop (n, , none) <body = b (int64 i, bool c, float[0,4] s)
            => (bool c2, float[1,4] s2) {
            axis = Constant <value_ints = [0]> ()
            row = Gather <axis = 0> (x, i)
            wide = Unsqueeze (row, axis)
            s2 = Concat <axis = 0> (s, wide)
            c2 = Identity (c)
        }>
    }"""


def test_lengths_that_a_body_declares_are_those_of_the_first_step() -> None:
    """torchvision's Mask R-CNN: a list without rows, declared so, to which each step appends."""
    model = parsed(APPENDED)
    compiled = tvm_edge.compile(model, "llvm")
    for steps in (0, 1, 5):
        agree(model, compiled, inputs_of(model, steps))


SUMS = """
    g (int64 n, float[5] x) => (float[1] y, float[k,ROW] rows) {
        zero = Constant <value = float[1] {0}> ()
        y, rows = Loop (n, , zero) <body = b (int64 i, bool c, float[1] s)
            => (bool c2, float[1] s2, float[ROW] row) {
            axis = Constant <value_ints = [0]> ()
            one = Constant <value_int = 1> ()
            next = Add (i, one)
            start = Unsqueeze (i, axis)
            end = Unsqueeze (next, axis)
            picked = Slice (x, start, end)
            s2 = Add (s, picked)
            row = Identity (s2)
            c2 = Identity (c)
        }>
    }"""


def test_rows_have_the_shape_that_the_file_declares() -> None:
    """Nobody can prove that ``x[i:i + 1]`` has one element: it has none behind the last one."""
    model = parsed(SUMS.replace("ROW", "1"))
    compiled = tvm_edge.compile(model, "llvm")
    for steps in (1, 3, 5):
        agree(model, compiled, inputs_of(model, steps))


def test_rows_of_a_shape_that_nothing_tells_are_refused() -> None:
    """Nor does a declaration that shape inference contradicts."""
    with pytest.raises(tvm_edge.UnsupportedOperatorError, match="rows of a loop's result"):
        tvm_edge.compile(parsed(SUMS.replace("ROW", "2")), "llvm")


def test_no_step_where_one_is_needed_ends_the_run() -> None:
    text = MODELS["variable without a value"].replace("Max (n, one)", "Min (n, one)")
    compiled = tvm_edge.compile(parsed(text), "llvm")
    inputs = {"n": np.asarray(0, "int64"), "x": random_input((2, 3))}
    with pytest.raises(tvm_edge.InputError):
        compiled.run(inputs)
    compiled.run({**inputs, "n": np.asarray(1, "int64")})
