"""Kernels of 8-bit numbers on GPUs: against ONNX Runtime, and what their sources multiply by."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir, te, tirx

import tvm_edge
from tests.marks import in_full, needs_opencl
from tests.quantized_models import (
    QuantizedGraph,
    assert_same_numbers,
    inputs_of,
    network,
    quantized,
    rules_of,
    with_intermediates,
)
from tests.schedules.gpu.harness import MALI, ORIN, launches, local_bytes
from tests.schedules.gpu.int8_models import SHAPES, model_of
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.hardware.kinds import opencl
from tvm_edge.hardware.presets import GENERIC_CUDA, PRESETS
from tvm_edge.lowering.cuda_compiler import cuda_compiler
from tvm_edge.lowering.opencl_source import sources_rewritten
from tvm_edge.schedules.base import Scheduled, workspace_of
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu import schedule, tiled
from tvm_edge.schedules.gpu.conv2d_int8 import conv2d_int8, pack_words, uses_words
from tvm_edge.schedules.gpu.dot_products import with_dot_products
from tvm_edge.schedules.gpu.product import Tile
from tvm_edge.schedules.words import column, packed, word_of_one

USUAL = [
    "filled up",
    "groups",
    "odd channels",
    "depthwise, strided",
    "many pixels",
    "two filters a channel",
    "one pixel",
]


@pytest.mark.parametrize(
    ("size", "dtype", "names"),
    [
        pytest.param("large_gpu", "uint8", USUAL, id="tiled"),
        pytest.param("small_gpu", "int8", USUAL[:4], id="direct"),
        pytest.param("large_gpu", "int8", list(SHAPES), id="all-tiled", marks=pytest.mark.full),
        pytest.param("small_gpu", "uint8", list(SHAPES), id="all-direct", marks=pytest.mark.full),
    ],
)
def test_awkward_shapes_with_zero_points_as_padding(
    size: str, dtype: str, names: list[str], gpu: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(size)
    graph = model_of(names, dtype)
    compiled = tvm_edge.compile(graph.model(), gpu, fallback="none")
    for name in names:
        image, filters, attributes = SHAPES[name]
        found = {rule for rule in rules_of(compiled, name) if rule != "elementwise"}
        alone = attributes.get("group", 1) == filters[0] == image[1]
        if alone:
            assert found == {"direct_int8"}, name
        elif name not in ("two filters a channel", "odd groups"):  # what adds up no four channels
            assert all(rule.endswith("_int8") for rule in found), f"{name}: {found}"
    assert any(k.rule.startswith("tiled") for k in compiled.report.kernels) == (size == "large_gpu")
    assert_same_numbers(compiled, graph.model(), graph.values)


@pytest.mark.parametrize(
    ("size", "form", "activations"),
    [
        ("large_gpu", "QDQ", "uint8"),
        *in_full(("small_gpu", "QOperator", "int8"), ("large_gpu", "QOperator", "uint8")),
    ],
)
def test_a_network_in_int8(
    size: str, form: str, activations: str, gpu: str, request: pytest.FixtureRequest
) -> None:
    """Bytes between kernels, and bounds, residual additions and rounding inside of them."""
    request.getfixturevalue(size)
    model = with_intermediates(quantized(network(), form=form, activations=activations))
    compiled = tvm_edge.compile(model, gpu, fallback="none")
    rules = [kernel.rule for kernel in compiled.report.kernels]
    assert sum(rule.endswith("_int8") for rule in rules) == 8, "7 convolutions and a Gemm"
    assert not {"conv2d", "tiled", "direct", "winograd_output"} & set(rules)
    assert_same_numbers(compiled, model, inputs_of(model, 7))


def test_taps_that_only_ever_read_padding(gpu: str, large_gpu: None) -> None:
    """Words of the columns outside an image one column wide are a constant."""
    graph = QuantizedGraph(seed=9059, dtype="int8")
    image = graph.input(1, 20, 6, 1, zero=98)
    result = graph.conv(image, (3, 20, 3, 3), strides=[3, 1], pads=[1] * 4)
    graph.quantized(result, 0.04)
    compiled = tvm_edge.compile(graph.model(), gpu, fallback="none")
    assert_same_numbers(compiled, graph.model(), graph.values)


TILES = {
    "parts": Tile(16, 32, 4, 4, 4, parts=3),
    "wide items": Tile(64, 64, 8, 8, 9),
    "larger than the matrix": Tile(128, 128, 8, 4, 8),
}


@pytest.mark.parametrize(
    "tile",
    [
        pytest.param(tile, id=name, marks=() if name == "parts" else pytest.mark.full)
        for name, tile in TILES.items()
    ],
)
def test_any_tile(tile: Tile, gpu: str, large_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "choose_product_tile", lambda *_: tile)
    graph = model_of(["groups", "many pixels"], "uint8")
    compiled = tvm_edge.compile(graph.model(), gpu, fallback="none")
    rules = [k.rule for k in compiled.report.kernels if k.rule.startswith("tiled")]
    assert len(rules) == 2 and all(rule.endswith("_int8") for rule in rules)
    assert_same_numbers(compiled, graph.model(), graph.values)


@pytest.mark.parametrize("rows", [1, *in_full(9)])
def test_products_with_a_constant_matrix(rows: int, gpu: str, large_gpu: None) -> None:
    graph = QuantizedGraph(seed=rows)
    numbers = graph.random.integers(-128, 128, (470, 48), "int8")
    scales = graph.random.uniform(1e-3, 2e-3, 48).astype("float32")
    matrix = graph.real(
        graph.constant(numbers, "int8"), scales, np.zeros(48, "int8"), "int8", axis=1
    )
    product = graph.op("MatMul", graph.input(rows, 470), matrix, name="product")
    shift = graph.constant(graph.random.normal(size=48), "float32")
    graph.quantized(graph.op("Add", product, shift, name="shift"), 0.2)
    compiled = tvm_edge.compile(graph.model(), gpu, fallback="none")
    found = {rule for rule in rules_of(compiled, "product") if rule.endswith("_int8")}
    own = "reduce" if rows == 1 else "tiled"  # one row: sums are shared
    (rule,) = found
    assert rule.startswith(own) and resolve_target(gpu).spec.dot_product in rule
    assert_same_numbers(compiled, graph.model(), graph.values)


@needs_opencl
def test_what_a_cpu_is_left_with_is_stored_as_its_instructions_want_it(slow_gpu: None) -> None:
    """A GPU that is far slower: the model goes to the CPU, with that one's kernels of bytes."""
    graph = model_of(["groups", "depthwise"], "uint8")
    compiled = tvm_edge.compile(graph.model(), "opencl")
    assert {kernel.device for kernel in compiled.report.kernels} == {"llvm"}
    if resolve_target("llvm").spec.dot_product:
        rules = {kernel.rule for kernel in compiled.report.kernels}
        assert {"conv2d_int8", "depthwise_int8"} <= rules
    assert_same_numbers(compiled, graph.model(), graph.values)


# ----------------------------------------------------------------------------------- the sources


DENSE = ConvWorkload(1, 32, 14, 14, 48, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1)
POINTWISE = replace(DENSE, kernel=(1, 1), padding=(0, 0, 0, 0))
MATRIX = replace(POINTWISE, channels=2048, height=1, width=1, filters=1000)
DEPTHWISE = replace(DENSE, filters=32, groups=32)
LARGE = replace(ORIN, cores=132)


def kernel(workload: ConvWorkload, spec: DeviceSpec, dtype: str = "int8") -> Scheduled:
    """A convolution whose sums become bytes."""
    shape = (workload.batch, workload.channels, workload.height, workload.width)
    image = te.placeholder(shape, dtype, "image")
    own = (workload.filters, workload.channels // workload.groups, *workload.kernel)
    weights = np.zeros(own, "int8")
    given = pack_words(weights) if uses_words(workload) else weights
    filters = te.placeholder(given.shape, str(given.dtype), "filters")
    sums = conv2d_int8(image, filters, workload, 3)
    result = te.compute(sums.shape, lambda *i: (sums(*i) >> 8).astype(dtype), "result")
    return schedule(te.create_prim_func([image, filters, result], "int64"), spec)


def source(made: Scheduled, target: dict[str, Any]) -> str:
    main = made.func.with_attr("global_symbol", "main")
    with sources_rewritten():
        built = tvm.compile(main, target=tvm.target.Target(target, host="llvm"))
    return str(built.mod.imports[0].inspect_source())


@pytest.mark.parametrize("workload", [DENSE, POINTWISE, MATRIX], ids=["3x3", "1x1", "matrix"])
def test_cuda_multiplies_four_numbers_at_once(workload: ConvWorkload) -> None:
    """And the compiler takes it."""
    made = kernel(workload, LARGE if workload is MATRIX else ORIN)
    assert made.rule == f"{'reduce' if workload is MATRIX else 'tiled'}_dp4a_int8"
    with cuda_compiler("sm_87"):
        text = source(made, {"kind": "cuda", "arch": "sm_87"})
    tile = launches(made.func)[0]
    products = text.count("__dp4a(")
    assert products >= (8 if made.rule.startswith("tiled") else 1) and tile.items >= 32
    assert "float" not in text.split("extern")[-1]


@pytest.mark.parametrize(
    ("dot_product", "call", "before"),
    [
        ("khr_dot", "dot_4x8packed_ss_int(", "cl_khr_integer_dot_product : enable"),
        ("arm_dot", "arm_dot_acc(as_char4(", "cl_arm_integer_dot_product_accumulate_int8"),
        ("qcom_dot", "qcom_dot8_acc(", "cl_qcom_dot_product8 : enable"),
        ("ptx_dp4a", "tvm_edge_dp4a(", "dp4a.s32.s32"),
        ("", "^ 128) - 128)", ""),
    ],
)
@pytest.mark.parametrize("spec", [MALI, LARGE], ids=["direct", "tiled"])
def test_opencl_multiplies_by_what_the_device_has(
    spec: DeviceSpec, dot_product: Any, call: str, before: str
) -> None:
    spec = replace(spec, dot_product=dot_product)
    made = kernel(DENSE, spec, "uint8" if dot_product == "qcom_dot" else "int8")
    names = ("tiled" if spec.cores == LARGE.cores else "direct", dot_product, "int8")
    assert made.rule == "_".join(filter(None, names))
    text = source(made, {"kind": "opencl"})
    body = text[text.rindex("__kernel") :]
    assert body.count(call) >= 8
    assert before in text and "tvm_edge_dot(" not in text
    others = {"arm_dot_acc", "dot_4x8packed", "qcom_dot8", "dp4a"} - {
        name for name in ("arm_dot_acc", "dot_4x8packed", "qcom_dot8", "dp4a") if name in call
    }
    assert not any(other in text for other in others)


def test_words_are_brought_to_local_memory_and_take_no_more_of_it() -> None:
    made = kernel(DENSE, replace(LARGE, local_memory=16384))
    assert local_bytes(made.func) <= 16384
    few = kernel(replace(DENSE, channels=512, height=7, width=7), LARGE)
    (room,) = workspace_of(few.func)
    assert str(room.dtype) == "int32" and len(launches(few.func)) == 2


def test_depthwise_convolutions_share_nothing() -> None:
    for spec in (MALI, LARGE):
        assert kernel(DEPTHWISE, spec).rule == "direct_int8"


@pytest.mark.parametrize("dot_product", ["dp4a", ""])
def test_a_column_of_four_words(dot_product: Any) -> None:
    """As the device calculates it: CUDA's ``__byte_perm``, or shifts."""
    random = np.random.default_rng(0)
    numbers = random.integers(-128, 128, (4, 4), "int8")
    words = tirx.decl_buffer([4], "int32")
    result = tirx.decl_buffer([1], "int32")
    spec = replace(ORIN, dot_product=dot_product)
    for place in range(4):
        own = column([words[i] for i in range(4)], place)
        func = tirx.PrimFunc([words, result], tirx.BufferStore(result, own, [0]))
        expr = with_dot_products(func, spec).body.value
        value = evaluated(expr, numbers.view("int32")[:, 0].tolist())
        assert value & _ALL == np.ascontiguousarray(numbers[:, place]).view("uint32")[0]


_ALL = 0xFFFFFFFF
_OPERATORS = {
    "RShift": operator.rshift,
    "LShift": operator.lshift,
    "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_,
}


def evaluated(expr: Any, words: list[int]) -> int:
    """The value of loads of words, shifts, unions and calls of ``__byte_perm``."""
    if isinstance(expr, tirx.IntImm):
        return int(expr)
    if isinstance(expr, ir.TensorLoad):
        return words[int(expr.indices[0])]
    if type(expr).__name__ in _OPERATORS:
        sides = (evaluated(side, words) for side in (expr.a, expr.b))
        return int(_OPERATORS[type(expr).__name__](*sides))
    assert isinstance(expr, ir.Call) and expr.args[0].value == "__byte_perm"
    low, high, selector = (evaluated(operand, words) for operand in expr.args[1:])
    both = (low & _ALL) | (high & _ALL) << 32
    picked = [both >> 8 * (selector >> 4 * i & 7) & 255 for i in range(4)]
    return sum(byte << 8 * i for i, byte in enumerate(picked))


@pytest.mark.parametrize("shape", [(5, 7, 3), (2, 8, 1), (1, 1, 4)])
def test_words_hold_four_neighbours(shape: tuple[int, ...]) -> None:
    numbers = np.random.default_rng(0).integers(-128, 128, shape, "int8")
    words = packed(numbers)
    count = -(-shape[1] // 4)
    assert words.shape == (shape[0], count, shape[2]) and words.dtype == np.int32
    single = np.ascontiguousarray(words.transpose(0, 2, 1)).view("int8").transpose(0, 2, 1)
    assert np.array_equal(single[:, : shape[1]], numbers) and not single[:, shape[1] :].any()
    assert int(word_of_one(-3)) == np.full(4, -3, "int8").view("int32")[0]


# ----------------------------------------------------------------------------------- the devices


@pytest.mark.parametrize(
    ("extensions", "expected"),
    [
        ("cl_khr_fp16 cl_khr_integer_dot_product", "khr_dot"),
        ("cl_khr_integer_dot_product cl_arm_integer_dot_product_accumulate_int8", "arm_dot"),
        ("cl_qcom_dot_product8 cl_qcom_perf_hint", "qcom_dot"),
        ("cl_khr_fp16 cl_arm_integer_dot_product_int8", ""),
        ("", ""),
    ],
)
def test_which_opencl_devices_have_one(extensions: str, expected: str) -> None:
    assert opencl._dot_product("a device", extensions.split()) == expected


def test_which_presets_have_one() -> None:
    found = {name: preset.spec.dot_product for name, preset in PRESETS.items()}
    assert {found["jetson-orin-nano"], found["jetson-agx-orin"]} == {"dp4a"}
    assert {found["jetson-nano"], found["jetson-tk1"], found["mali-t860"]} == {""}
    assert found["mali-g76"] == "arm_dot" and found["intel-iris-xe"] == "khr_dot"
    assert GENERIC_CUDA.dot_product == "dp4a"


@needs_opencl
def test_this_machines_opencl_device_has_none_where_it_is_a_cpu() -> None:
    spec = resolve_target("opencl").spec
    assert not (spec.on_cpu and spec.dot_product)
