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
ERROR = 2.2e-3
"""Root mean square, of the results': some eight roundings of 2**-12 in a sum of 128 products."""


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


CASES = {
    "pointwise": ((1, 384, 5, 7), (64, 384, 1, 1), {}),
    "window": ((2, 96, 9, 7), (64, 96, 3, 3), {"pads": [1, 1, 1, 1]}),
    "strided": ((1, 32, 15, 13), (96, 32, 5, 3), {"pads": [2, 1, 1, 0], "strides": [2, 2]}),
    "dilated": ((1, 32, 14, 14), (51, 32, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    "first": ((1, 3, 31, 29), (32, 3, 7, 7), {"pads": [3] * 4, "strides": [2, 2]}),
    "groups": ((1, 64, 8, 9), (128, 32, 3, 3), {"group": 2}),
    "filled": ((1, 24, 7, 7), (56, 24, 3, 3), {"pads": [1] * 4}),
    "pixel": ((1, 512, 1, 1), (480, 512, 1, 1), {}),  # the mean of few varies
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("spec", HALVES, ids=lambda spec: spec.name)
def test_sums_are_as_exact_as_those_of_a_run(spec: DeviceSpec, case: str) -> None:
    image, filters, attrs = CASES[case]
    x, w = halves(*image), halves(*filters)
    compiled = compile_as(model(image, w, **attrs), spec, direct, "float16")
    given = {"pads": [0] * 4, "strides": [1, 1], "dilations": [1, 1], "group": 1} | attrs
    expected = exact(x, w, **given)
    error = rms(compiled.model.run({"x": x})["y"] - expected) / rms(expected)
    # Added up in float32 they would be right to 1e-6.
    assert 3e-5 < error < ERROR, (case, error)
    assert compiled.report.precision is not None
    assert "1 kernel with float16 arithmetic" in compiled.report.precision.line()


def test_few_channels_are_added_up_in_float32() -> None:
    """Sixteen filters fill half a vector of AVX-512's: float32 has as many lanes."""
    x, w = halves(1, 64, 9, 9), halves(16, 64, 3, 3)
    compiled = compile_as(model(x.shape, w), HALVES[0], direct, "float16")
    expected = exact(x, w, [0] * 4, [1, 1], [1, 1], 1)
    assert rms(compiled.model.run({"x": x})["y"] - expected) < 1e-6 * rms(expected)


def test_mixed_adds_up_in_float32() -> None:
    x, w = halves(1, 64, 9, 9), halves(64, 64, 3, 3)
    compiled = compile_as(model(x.shape, w), HALVES[0], direct, "mixed")
    expected = exact(x, w, [0] * 4, [1, 1], [1, 1], 1)
    assert rms(compiled.model.run({"x": x})["y"] - expected) < 1e-6 * rms(expected)
    assert compiled.report.precision is not None
    assert compiled.report.precision.float16_kernels == 0


CPUS = {
    "arm": ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}, r"fmla\tv\d+\.8h.*\.h\[\d\]"),
    "x86": ({"mtriple": "x86_64-linux-gnu", "mcpu": "sapphirerapids"}, r"vfmadd\d+ph\t.*%zmm"),
}


@pytest.mark.parametrize("cpu", CPUS)
def test_instructions_multiply_whole_vectors_of_float16(cpu: str) -> None:
    target, multiplies = CPUS[cpu]
    whole = {"kind": "llvm", "num-cores": 4, **target}
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["r"], name="window", strides=[2, 2]),
        helper.make_node("Conv", ["r", "w"], ["y"], name="point"),
    ]
    values = {"v": halves(64, 64, 3, 3), "w": halves(128, 64, 1, 1)}
    given = make_model(nodes, {"x": (1, 64, 28, 28)}, ["y"], values)
    done = PIPELINE.part(until="ConcatInPlace").run(
        begin(given, whole, Options(precision="float16"))
    )
    kernels = {
        gvar.name_hint: func
        for gvar, func in done.module.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }
    convolutions = [func for name, func in kernels.items() if "conv2d" in name]
    assert len(convolutions) == 2
    cpu_pipeline.register()
    for func in convolutions:
        module = tvm.IRModule({"kernel": func.with_attr("global_symbol", "kernel")})
        with tvm.target.Target(whole) as target:
            built = tvm.tirx.build(module, target=target, pipeline=cpu_pipeline.CPU)
        code = str(built.inspect_source("asm"))
        assert len(re.findall(multiplies, code)) >= 64
        assert not re.findall(r"(fmla\tv\d+\.4s|vfmadd\d+ps)", code)
        # Of a number of 16 bits each broadcast would take a port that multiplies.
        assert "vpbroadcastw" not in code
