"""Functions on CPUs: their error in ulp against float64, edges, and that no library is called."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from onnx import helper
from tvm import ir, te, tirx

import tvm_edge
from tests.onnx_models import make_model
from tvm_edge.lowering import cpu_pipeline
from tvm_edge.lowering.cpu_functions import ExpandFunctions
from tvm_edge.schedules.accesses import nodes_in

_LEAST = 2.0**-126
_erf = np.vectorize(math.erf, otypes=[np.float64])

# The function in float64, and its bound in ulp as the module states it.
FUNCTIONS: Mapping[str, tuple[Callable[[Any], Any], float]] = {
    "Erf": (_erf, 1.1),
    "Exp": (np.exp, 1.1),
    "Log": (np.log, 1.0),
    "Sigmoid": (lambda x: np.exp(-np.logaddexp(0, -x)), 2.0),
    "Tanh": (np.tanh, 2.0),
}
_X86 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}
TARGETS = ["llvm", _X86] if platform.machine() == "x86_64" else ["llvm"]
EDGES = [
    *(0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, -1e30, 3.4e38, -3.4e38, 1e-30, -1e-30),
    *(_LEAST, 1.5 * _LEAST, 88.72283, 88.72284, -87.33654, -87.3, -103.0, -200.0, 1.0, -1.0),
]


def _sample() -> np.ndarray:
    random = np.random.default_rng()
    parts = [
        np.array(EDGES),
        random.uniform(-100, 100, 30_000),
        random.uniform(-9, 9, 30_000),
        random.normal(size=30_000) * 2.0 ** random.integers(-40, 5, 30_000),
        np.exp(random.uniform(-87, 88, 10_000)),
        np.linspace(88.3, 88.73, 5_000),  # just below the overflow
        np.linspace(0.5, 2, 20_000),
    ]
    return np.concatenate(parts).astype(np.float32)


def _ulp(true: np.ndarray) -> np.ndarray:
    exponents = np.floor(np.log2(np.maximum(np.abs(true), _LEAST)))
    return np.asarray(2.0 ** (exponents - 23))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target)[-10:-2])
def test_functions_are_right_to_their_ulp(target: Any) -> None:
    x = _sample()
    nodes = [helper.make_node(name, ["x"], [name]) for name in FUNCTIONS]
    model = make_model(nodes, {"x": (x.size,)}, list(FUNCTIONS))
    found = tvm_edge.compile(model, target, tuning_logs=False).run({"x": x})
    for name, (function, bound) in FUNCTIONS.items():
        with np.errstate(all="ignore"):
            true, y = function(x.astype(np.float64)), found[name].astype(np.float64)
            finite = np.isfinite(true) & (np.abs(true) < np.finfo(np.float32).max)
            errors = np.where(finite, np.abs(y - true) / _ulp(true), 0)
        # Subnormal results may be zero.
        errors = np.where((np.abs(true) < _LEAST) & (np.abs(y) <= _LEAST), 0, errors)
        worst = errors.argmax()
        assert errors[worst] <= bound, f"{name}({x[worst]!r}) = {y[worst]!r}: {errors[worst]} ulp"
        rest = ~finite
        with np.errstate(over="ignore"):
            expected = true.astype(np.float32)
        np.testing.assert_array_equal(y[rest], expected[rest], err_msg=name)
        zeros = x == 0
        if name in ("Erf", "Tanh"):
            assert np.array_equal(np.signbit(y[zeros]), np.signbit(x[zeros])), name
        if name in ("Erf", "Tanh", "Sigmoid"):
            assert np.nanmax(np.abs(y)) == 1


def test_chains_of_functions() -> None:
    """GELU is right to 2 ulp of its argument, Softplus to 3 of the result, Mish to 5."""
    x = np.random.default_rng().normal(size=20_000).astype(np.float32) * 5
    nodes = [helper.make_node(name, ["x"], [name]) for name in ("Gelu", "Mish", "Softplus")]
    model = make_model(nodes, {"x": (x.size,)}, ["Gelu", "Mish", "Softplus"], opset=20)
    found = tvm_edge.compile(model, "llvm", tuning_logs=False).run({"x": x})
    wide = x.astype(np.float64)
    softplus = np.logaddexp(0, wide)
    gelu = wide / 2 * (1 + _erf(wide / math.sqrt(2)))
    eps = np.finfo(np.float32).eps
    assert np.all(np.abs(found["Gelu"] - gelu) <= 2 * eps * np.abs(wide))
    assert np.all(np.abs(found["Softplus"] - softplus) <= 3 * _ulp(softplus))
    mish = wide * np.tanh(softplus)
    assert np.all(np.abs(found["Mish"] - mish) <= 5 * _ulp(mish))


def _kernel(target: str) -> tvm.IRModule:
    data = te.placeholder((4, 32), "float32", "data")
    body = te.compute(data.shape, lambda *i: tirx.tanh(tirx.log(data[i])) + tirx.exp(data[i]))
    func = te.create_prim_func([data, body])
    attrs = {"target": tvm.target.Target(target), "global_symbol": "main"}
    return tvm.IRModule({"main": func.with_attr(attrs)})


def _functions(mod: tvm.IRModule) -> set[str]:
    found: set[str] = set()
    for _, func in mod.functions_items():
        tvm_ffi.structural_walk(
            func, (ir.Call, lambda call: found.add(getattr(call.op, "name", "")))
        )
    return found & {"tirx.exp", "tirx.log", "tirx.tanh"}


def _before_vectors(mod: tvm.IRModule) -> tvm.IRModule:
    names = [each.info.name for each in cpu_pipeline.PASSES]
    passes = cpu_pipeline.PASSES[: names.index("tirx.VectorizeLoop")]
    return tvm.transform.Sequential(passes)(mod)


def test_kernels_that_no_rule_scheduled_call_no_library() -> None:
    mod = _kernel("llvm")
    assert len(_functions(mod)) == 3
    assert not _functions(_before_vectors(mod))


def test_small_numbers_are_still_rounded_after_tvm_has_simplified() -> None:
    """TVM takes ``(x + c) - c`` for x."""
    data = te.placeholder((32,), "float32", "data")
    low, high = tirx.const(-128.0, "float32"), tirx.const(127.0, "float32")
    body = te.compute(
        data.shape, lambda i: tirx.nearbyint(tirx.min(tirx.max(data[i], low), high)) + data[i]
    )
    attrs = {"target": tvm.target.Target("llvm"), "global_symbol": "main"}
    func = te.create_prim_func([data, body]).with_attr(attrs)
    (store,) = nodes_in(_before_vectors(tvm.IRModule({"main": func}))["main"], tirx.BufferStore)
    steps = [type(node) for node in nodes_in(store.value, tirx.Add, tirx.Sub)]
    assert steps.count(tirx.Add) == 2 and steps.count(tirx.Sub) == 1


def test_other_targets_keep_their_functions() -> None:
    assert len(_functions(ExpandFunctions()(_kernel("opencl")))) == 3
