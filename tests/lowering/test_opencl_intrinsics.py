"""Functions that OpenCL C calls otherwise than C."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvm_edge.hardware import resolve_target
from tvm_edge.lowering.cuda_compiler import cuda_compiler
from tvm_edge.lowering.opencl_intrinsics import RENAMED, register
from tvm_edge.schedules.gpu import schedule

POSITIVE = np.linspace(0.1, 5, 64).astype("float32")
SIGNED = np.linspace(-3, 3, 64).astype("float32")
UNIT = np.linspace(-0.99, 0.99, 64).astype("float32")
SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 1, -1, 2.5] * 8)
SHORT = (np.arange(64) % 5).astype("int32")

CASES: dict[str, tuple[tuple[np.ndarray, ...], Callable[..., np.ndarray]]] = {
    "acos": ((UNIT,), np.arccos),
    "acosh": ((POSITIVE + 1,), np.arccosh),
    "asin": ((UNIT,), np.arcsin),
    "asinh": ((SIGNED,), np.arcsinh),
    "atan": ((SIGNED,), np.arctan),
    "atan2": ((SIGNED, POSITIVE), np.arctan2),
    "atanh": ((UNIT,), np.arctanh),
    "copysign": ((POSITIVE, SIGNED), np.copysign),
    "hypot": ((SIGNED, POSITIVE), np.hypot),
    "ldexp": ((POSITIVE, SHORT), np.ldexp),
    "log1p": ((POSITIVE,), np.log1p),
    "nearbyint": ((SIGNED,), np.round),
    "nextafter": ((POSITIVE, SIGNED), np.nextafter),
    "tan": ((SIGNED,), np.tan),
    # TVM's own rules, which have to be right too.
    "exp": ((SIGNED,), np.exp),
    "floor": ((SIGNED,), np.floor),
    "isfinite": ((SPECIAL,), np.isfinite),
    "isinf": ((SPECIAL,), np.isinf),
    "isnan": ((SPECIAL,), np.isnan),
    "log": ((POSITIVE,), np.log),
    "power": ((POSITIVE, SIGNED), np.power),
    "round": ((SIGNED,), np.round),
    "sigmoid": ((SIGNED,), lambda v: 1 / (1 + np.exp(-v))),
    "tanh": ((SIGNED,), np.tanh),
}


def kernel(name: str, arrays: tuple[np.ndarray, ...]) -> tirx.PrimFunc:
    inputs = [te.placeholder(a.shape, str(a.dtype), name=f"x{i}") for i, a in enumerate(arrays)]
    output = te.compute(
        arrays[0].shape, lambda i: getattr(tirx, name)(*(x[i] for x in inputs)), name="y"
    )
    return te.create_prim_func([*inputs, output])


def test_every_renamed_function_is_tried() -> None:
    assert set(RENAMED) <= set(CASES)


@pytest.mark.parametrize("name", RENAMED)
def test_the_source_has_opencls_name(name: str) -> None:
    register()
    resolved = resolve_target("mali-t860")
    func = schedule(kernel(name, CASES[name][0]), resolved.spec).func
    library = tvm.compile(func.with_attr("global_symbol", "main"), target=resolved.target)
    source = library.mod.imports[0].inspect_source()
    assert f" {RENAMED[name]}(" in source
    assert f"{name}f(" not in source


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, gpu: str) -> None:
    register()
    arrays, function = CASES[name]
    expected = function(*arrays)
    resolved = resolve_target(gpu)
    func = schedule(kernel(name, arrays), resolved.spec).func
    if gpu == "cuda" and name == "nearbyint":
        pytest.skip("a float function of C's, tried through OpenCL only")
    precise = cuda_compiler(str(resolved.target.attrs["arch"])) if gpu == "cuda" else nullcontext()
    with precise:
        library = tvm.compile(func.with_attr("global_symbol", "main"), target=resolved.target)
    device = tvm.device(gpu, 0)
    result = tvm.runtime.tensor(np.zeros(expected.shape, expected.dtype), device)
    library["main"](*(tvm.runtime.tensor(array, device) for array in arrays), result)
    np.testing.assert_allclose(result.numpy(), expected, rtol=4e-6, atol=1e-6)


def test_bits_of_a_value_that_has_no_address(gpu: str) -> None:
    """As those that widen a bfloat16: an integer that is calculated is read as a float."""
    register()
    bits = np.arange(64, dtype="uint16") + 0x3F80
    half = te.placeholder(bits.shape, "uint16", "half")

    def twice(i: tirx.Var) -> tirx.Expr:
        value = tirx.reinterpret("float32", half[i].astype("uint32") << tirx.const(16, "uint32"))
        return tirx.reinterpret("float32", tirx.reinterpret("uint32", value + value))

    wide = te.compute(bits.shape, twice, "wide")
    resolved = resolve_target(gpu)
    func = schedule(te.create_prim_func([half, wide]), resolved.spec).func
    library = tvm.compile(func.with_attr("global_symbol", "main"), target=resolved.target)
    if gpu == "opencl":
        assert "as_float(" in library.mod.imports[0].inspect_source()
    device = tvm.device(gpu, 0)
    result = tvm.runtime.tensor(np.zeros(bits.shape, "float32"), device)
    library["main"](tvm.runtime.tensor(bits, device), result)
    np.testing.assert_array_equal(result.numpy(), 2 * (bits.astype("uint32") << 16).view("float32"))
