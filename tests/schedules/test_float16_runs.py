"""Products of float16 that are added up in float16, on machines that may lack instructions."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from onnx import ModelProto, helper
from tvm import tirx

from tests.onnx_models import make_model
from tests.schedules.blocked_harness import SPECS, compile_as, direct
from tvm_edge.compiler.compilation import begin
from tvm_edge.compiler.driver import PIPELINE
from tvm_edge.compiler.options import Options
from tvm_edge.hardware import DeviceSpec
from tvm_edge.lowering import cpu_pipeline

Array = NDArray[Any]

HALVES = tuple(replace(spec, float16=True, float16_vectors=True) for spec in SPECS)
ERROR = 1e-3
"""Root mean square, of the results': some three roundings of 2**-12."""


def most(spec: DeviceSpec) -> float:
    """Return the error that is allowed: NEON adds 32 products one by one, others add 16."""
    return 1.2 * ERROR if spec.multiplies_by_element else ERROR


def halves(*shape: int, scale: float = 1.0) -> Array:
    """Random numbers that float16 has, as float32."""
    return (scale * np.random.default_rng().standard_normal(shape)).astype("float16").astype("f4")


def model(image: tuple[int, ...], weights: Array, **attrs: Any) -> ModelProto:
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", **attrs)
    return make_model([node], {"x": image}, ["y"], {"w": weights})


def exact(x: Array, w: Array, pads: Any, strides: Any, dilations: Any, group: int) -> Array:
    """Convolve in float64."""
    x = np.pad(x.astype("f8"), ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    lines, columns = (
        (x.shape[2 + i] - dilations[i] * (w.shape[2 + i] - 1) - 1) // strides[i] + 1 for i in (0, 1)
    )
    y = np.zeros((x.shape[0], w.shape[0], lines, columns))
    own, made = w.shape[1], w.shape[0] // group
    for g, ky, kx in product(range(group), range(w.shape[2]), range(w.shape[3])):
        top, left = ky * dilations[0], kx * dilations[1]
        part = x[:, g * own : (g + 1) * own, top:, left:]
        part = part[:, :, : lines * strides[0] : strides[0], : columns * strides[1] : strides[1]]
        filters = w[g * made : (g + 1) * made, :, ky, kx]
        y[:, g * made : (g + 1) * made] += np.einsum("nchw,oc->nohw", part, filters)
    return y


def rms(value: Array) -> float:
    return float(np.sqrt(np.mean(np.square(value))))


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "pointwise": ((1, 384, 5, 7), (64, 384, 1, 1), {}),
    "window": ((2, 96, 9, 7), (64, 96, 3, 3), {"pads": [1, 1, 1, 1]}),
    "strided": ((1, 32, 15, 13), (96, 32, 5, 3), {"pads": [2, 1, 1, 0], "strides": [2, 2]}),
    "dilated": ((1, 32, 14, 14), (51, 32, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    "first": ((1, 3, 31, 29), (32, 3, 7, 7), {"pads": [3] * 4, "strides": [2, 2]}),
    "groups": ((1, 64, 8, 9), (128, 32, 3, 3), {"group": 2}),
    "filled": ((1, 24, 7, 7), (56, 24, 3, 3), {"pads": [1] * 4}),
    "pixel": ((1, 512, 1, 1), (480, 512, 1, 1), {}),  # the mean of few varies
}


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("spec", HALVES, ids=lambda spec: spec.name)
def test_sums_are_as_exact_as_those_of_a_run(spec: DeviceSpec, case: str) -> None:
    image, filters, attrs = CASES[case]
    x, w = halves(*image), halves(*filters)
    compiled = compile_as(model(image, w, **attrs), spec, direct, "float16")
    given: dict[str, Any] = {
        "pads": [0] * 4,
        "strides": [1, 1],
        "dilations": [1, 1],
        "group": 1,
    } | attrs
    expected = exact(x, w, **given)
    error = rms(compiled.model.run({"x": x})["y"] - expected) / rms(expected)
    # Added up in float32 they would be right to 1e-6. A run of 7 would take as long to add again as
    # its products did: NEON has 49 of the first layer one by one.
    longer = 1.1 if case == "first" and spec.multiplies_by_element else 1.0
    assert 3e-5 < error < longer * most(spec), (case, error)
    assert compiled.report.precision is not None
    assert "1 kernel with float16 arithmetic" in compiled.report.precision.line()


@pytest.mark.parametrize("spec", HALVES, ids=lambda spec: spec.name)
def test_what_follows_a_short_sum_is_as_exact(spec: DeviceSpec) -> None:
    """A bias, an image and bounds, in float16 where the sum of 24 channels is one run."""
    x, w, bias = halves(1, 24, 6, 7), halves(64, 24, 1, 1), halves(64)
    other = halves(64, 64, 1, 1)
    nodes = [
        helper.make_node("Conv", ["x", "w", "bias"], ["sum"], name="conv"),
        helper.make_node("Add", ["sum", "z"], ["added"]),
        helper.make_node("Clip", ["added", "low", "high"], ["clipped"]),
        helper.make_node("Conv", ["clipped", "other"], ["y"], name="next"),
    ]
    low, high = (np.array(bound, "f4") for bound in (-1.0, 9.0))
    values = {"w": w, "bias": bias, "other": other, "low": low, "high": high}
    z = halves(1, 64, 6, 7)
    whole = make_model(nodes, {"x": x.shape, "z": z.shape}, ["clipped", "y"], values)
    compiled = compile_as(whole, spec, direct, "float16")
    plain = ([0] * 4, [1, 1], [1, 1], 1)
    expected = np.clip(exact(x, w, *plain) + bias[:, None, None] + z, low, high)
    clipped = compiled.model.run({"x": x, "z": z})["clipped"]
    assert clipped.min() == low
    assert clipped.max() == high
    assert rms(clipped - expected) / rms(expected) < ERROR


def test_blocks_of_half_a_vector() -> None:
    """Sixteen filters, and the image that they leave, are half a vector of AVX-512's."""
    x, v, w = halves(1, 64, 9, 9), halves(16, 64, 3, 3), halves(64, 16, 1, 1, scale=0.1)
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["r"], name="first"),
        helper.make_node("Conv", ["r", "w"], ["y"], name="second"),
    ]
    compiled = compile_as(
        make_model(nodes, {"x": x.shape}, ["y"], {"v": v, "w": w}), HALVES[0], direct, "float16"
    )
    plain = ([0] * 4, [1, 1], [1, 1], 1)
    expected = exact(exact(x, v, *plain), w, *plain)
    error = rms(compiled.model.run({"x": x})["y"] - expected) / rms(expected)
    assert 3e-5 < error < 1.5 * ERROR
    assert compiled.report.precision is not None
    assert compiled.report.precision.float16_kernels == 2
    assert not [kernel.name for kernel in compiled.report.kernels if "repack" in kernel.name]


WINDOWS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "same": ((1, 64, 9, 11), (64, 1, 3, 3), {"pads": [1] * 4}),
    "strided": ((2, 96, 12, 9), (96, 1, 5, 5), {"pads": [2] * 4, "strides": [2, 2]}),
    "inside": ((1, 32, 8, 8), (32, 1, 3, 3), {}),
}


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("spec", HALVES, ids=lambda spec: spec.name)
def test_depthwise_windows(spec: DeviceSpec, case: str) -> None:
    image, filters, attrs = WINDOWS[case]
    x, w = halves(*image), halves(*filters)
    attrs = {"group": image[1], **attrs}
    compiled = compile_as(model(image, w, **attrs), spec, direct, "float16")
    given = {"pads": [0] * 4, "strides": [1, 1], "dilations": [1, 1]} | attrs
    expected = exact(x, w, **given)
    error = rms(compiled.model.run({"x": x})["y"] - expected) / rms(expected)
    assert 3e-5 < error < ERROR, (case, error)
    assert compiled.rules_of("conv") == {"window_blocked"}
    assert compiled.report.precision is not None
    assert compiled.report.precision.float16_kernels == 1


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("size", [3, 13])
@pytest.mark.parametrize("spec", HALVES, ids=lambda spec: spec.name)
def test_maxima_are_exact(spec: DeviceSpec, size: int) -> None:
    """In float16, between products; the padding is below the lowest number."""
    pads = size // 2
    x, v, w = -abs(halves(1, 64, 7, 7)), halves(64, 64, 1, 1), np.eye(64, dtype="f4")
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["r"], name="first"),
        helper.make_node(
            "MaxPool", ["r"], ["m"], name="pool", kernel_shape=[size] * 2, pads=[pads] * 4
        ),
        helper.make_node("Conv", ["m", "w"], ["y"], name="second"),
    ]
    values = {"v": v, "w": w[:, :, None, None]}
    both = make_model(nodes, {"x": x.shape}, ["r", "y"], values)
    compiled = compile_as(both, spec, direct, "float16")
    made = compiled.model.run({"x": x})
    around = ((0, 0), (0, 0), (pads, pads), (pads, pads))
    rounded = np.pad(made["r"], around, constant_values=-np.inf)
    tiles = np.lib.stride_tricks.sliding_window_view(rounded, (size, size), axis=(2, 3))
    np.testing.assert_array_equal(made["y"], tiles.max(axis=(4, 5)).astype("f2").astype("f4"))
    assert compiled.report.precision is not None
    assert compiled.report.precision.float16_kernels == 3


def winograd(m: int) -> Any:
    return lambda workload, spec: replace(direct(workload, spec), algorithm="winograd", m=m)


@pytest.mark.parametrize("spec", HALVES, ids=lambda spec: spec.name)
def test_winograd_products(spec: DeviceSpec) -> None:
    """Their error grows with the tile; elements near the largest number do not overflow."""
    x, w = halves(1, 160, 9, 11), halves(64, 160, 3, 3)
    x, w = 8e3 * x, w / 256
    expected = exact(x, w, [1] * 4, [1, 1], [1, 1], 1)
    for m, most in ((2, 2 * ERROR), (4, 5 * ERROR)):
        compiled = compile_as(model(x.shape, w, pads=[1] * 4), spec, winograd(m), "float16")
        assert 6e-4 < rms(compiled.model.run({"x": x})["y"] - expected) / rms(expected) < most
        assert compiled.rules_of("conv") == {"winograd"}
        assert compiled.report.precision is not None
        assert compiled.report.precision.float16_kernels == 1


@pytest.mark.parametrize("spec", HALVES, ids=lambda spec: spec.name)
def test_fully_connected_layers(spec: DeviceSpec) -> None:
    """A product of one row by a matrix that is larger than the caches of a core."""
    x, w = halves(1, 1024), halves(1024, 600)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")
    given = make_model([node], {"x": x.shape}, ["y"], {"w": w})
    compiled = compile_as(given, spec, direct, "float16")
    expected = x.astype("f8") @ w.astype("f8")
    assert 3e-5 < rms(compiled.model.run({"x": x})["y"] - expected) / rms(expected) < most(spec)
    assert compiled.report.precision is not None
    assert compiled.report.precision.float16_kernels == 1


PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "packed": ((1, 49, 384), (384, 100)),
    "pages": ((20, 2048), (2048, 64)),  # rows a multiple of 4 KiB apart
    "copied": ((2, 20, 96), (2, 96, 40)),
}


@pytest.mark.diagonals(1)
@pytest.mark.parametrize("case", PRODUCTS)
@pytest.mark.parametrize("spec", HALVES, ids=lambda spec: spec.name)
def test_products_of_many_rows(spec: DeviceSpec, case: str) -> None:
    left, right = PRODUCTS[case]
    x, w = halves(*left), halves(*right)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    shapes = {"x": left, "w": right} if case == "copied" else {"x": left}
    values = {} if case == "copied" else {"w": w}
    given = {name: {"x": x, "w": w}[name] for name in shapes}
    compiled = compile_as(make_model([node], shapes, ["y"], values), spec, direct, "float16")
    expected = x.astype("f8") @ w.astype("f8")
    assert 3e-5 < rms(compiled.model.run(given)["y"] - expected) / rms(expected) < most(spec)
    assert compiled.rules_of("product") == {"dense"}
    assert compiled.report.precision is not None
    assert compiled.report.precision.float16_kernels == 1


def test_products_that_no_run_divides_add_up_in_float32() -> None:
    """A run of one product would be widened after each multiply-add."""
    x, w = halves(30, 197), halves(197, 64)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    given = make_model([node], {"x": x.shape}, ["y"], {"w": w})
    compiled = compile_as(given, HALVES[0], direct, "float16")
    expected = x.astype("f8") @ w.astype("f8")
    assert rms(compiled.model.run({"x": x})["y"] - expected) < 1e-6 * rms(expected)
    assert compiled.report.precision is not None
    assert compiled.report.precision.float16_kernels == 0


def test_mixed_adds_up_in_float32() -> None:
    x, w = halves(1, 64, 9, 9), halves(64, 64, 3, 3)
    compiled = compile_as(model(x.shape, w), HALVES[0], direct, "mixed")
    expected = exact(x, w, [0] * 4, [1, 1], [1, 1], 1)
    assert rms(compiled.model.run({"x": x})["y"] - expected) < 1e-6 * rms(expected)
    assert compiled.report.precision is not None
    assert compiled.report.precision.float16_kernels == 0


CPUS = {
    "arm": ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}, r"fmla\tv\d+\.8h.*\.h\[\d\]"),
    "x86": (
        {"mtriple": "x86_64-linux-gnu", "mcpu": "sapphirerapids"},
        r"vfmadd\d+ph\t.*\{1to32\}, %zmm",
    ),
}


def code_of(
    nodes: list[Any], image: tuple[int, ...], values: dict[str, Array], cpu: str
) -> list[str]:
    """Return the assembly of each convolution and product of a model, for a CPU."""
    whole = {"kind": "llvm", "num-cores": 4, **CPUS[cpu][0]}
    given = make_model(nodes, {"x": image}, ["y"], values)
    done = PIPELINE.part(until="ConcatInPlace").run(
        begin(given, whole, Options(precision="float16"))
    )
    functions = done.module.functions_items()
    names = ("conv2d", "win", "dense")
    kernels = [f for gvar, f in functions if any(name in gvar.name_hint for name in names)]
    cpu_pipeline.register()
    found = []
    for func in (f for f in kernels if isinstance(f, tirx.PrimFunc)):
        module = tvm.IRModule({"kernel": func.with_attr("global_symbol", "kernel")})
        with tvm.target.Target(whole) as target:
            built = tvm.tirx.build(module, target=target, pipeline=cpu_pipeline.CPU)
        found.append(str(built.inspect_source("asm")))
    return found


@pytest.mark.parametrize("cpu", CPUS)
def test_instructions_multiply_whole_vectors_of_float16(cpu: str, optimised: None) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["r"], name="window", strides=[2, 2]),
        helper.make_node("Conv", ["r", "w"], ["y"], name="point"),
    ]
    values = {"v": halves(64, 64, 3, 3), "w": halves(128, 64, 1, 1)}
    made = code_of(nodes, (1, 64, 28, 28), values, cpu)
    product = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    made += code_of([product], (1, 50, 768), {"w": halves(768, 256)}, cpu)
    assert len(made) == 3
    for code in made:
        assert len(re.findall(CPUS[cpu][1], code)) >= 64
        assert not re.findall(r"(fmla\tv\d+\.4s|vfmadd\d+ps)", code)
        # By itself each broadcast of a number of 16 bits would take a port that multiplies.
        assert "vpbroadcastw" not in code


def test_short_sums_are_never_widened() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "v", "b"], ["r"], name="first"),
        helper.make_node("Clip", ["r", "low", "high"], ["c"]),
        helper.make_node("Conv", ["c", "w"], ["y"], name="second"),
    ]
    bounds = {"low": np.array(0, "f4"), "high": np.array(6, "f4")}
    values = {"v": halves(64, 64, 1, 1), "b": halves(64), "w": halves(64, 64, 1, 1), **bounds}
    first, second = code_of(nodes, (1, 64, 28, 28), values, "x86")
    assert "vmaxph" in first
    assert "vcvtph2ps" not in first
    assert "vcvtph2ps" in second  # the result is float32
