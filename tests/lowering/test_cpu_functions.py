"""Functions on CPUs: their error in ulp against float64, edges, and that no library is called."""

from __future__ import annotations

import math
import platform
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from onnx import helper
from tvm import ir, te, tirx

import tvm_edge
from tests.function_errors import assert_right, erf, network, sample, ulp
from tests.onnx_models import make_model
from tvm_edge.lowering import cpu_pipeline
from tvm_edge.lowering.cpu_functions import ExpandFunctions
from tvm_edge.schedules.accesses import nodes_in

_X86 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}
TARGETS = ["llvm", _X86] if platform.machine() == "x86_64" else ["llvm"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target)[-10:-2])
def test_functions_are_right_to_their_ulp(target: Any) -> None:
    x = sample()
    model = tvm_edge.compile(network(x.size), target, tuning_logs=False)
    assert_right(model.run({"x": x}), x)


def test_chains_of_functions() -> None:
    """GELU is right to 2 ulp of its argument, Softplus to 3 of the result, Mish to 5."""
    x = np.random.default_rng().normal(size=20_000).astype(np.float32) * 5
    nodes = [helper.make_node(name, ["x"], [name]) for name in ("Gelu", "Mish", "Softplus")]
    model = make_model(nodes, {"x": (x.size,)}, ["Gelu", "Mish", "Softplus"], opset=20)
    found = tvm_edge.compile(model, "llvm", tuning_logs=False).run({"x": x})
    wide = x.astype(np.float64)
    softplus = np.logaddexp(0, wide)
    gelu = wide / 2 * (1 + erf(wide / math.sqrt(2)))
    eps = np.finfo(np.float32).eps
    assert np.all(np.abs(found["Gelu"] - gelu) <= 2 * eps * np.abs(wide))
    assert np.all(np.abs(found["Softplus"] - softplus) <= 3 * ulp(softplus))
    mish = wide * np.tanh(softplus)
    assert np.all(np.abs(found["Mish"] - mish) <= 5 * ulp(mish))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target)[-10:-2])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_error_functions_of_results_that_are_rounded(dtype: str, target: Any) -> None:
    """The error itself is the result: what is left of it is not rounded away."""
    x = sample()
    scale = 2.0**16
    shape = (x.size,)
    data, known = (te.placeholder(shape, "float32", name) for name in ("data", "known"))
    error = te.compute(
        shape,
        lambda i: tirx.Cast(dtype, (tirx.erf(data[i]) - known[i]) * tirx.const(scale, "float32")),
    )
    func = te.create_prim_func([data, known, error]).with_attr("global_symbol", "main")
    cpu_pipeline.register()
    built = tvm.compile(func, target=tvm.target.Target(target), tir_pipeline=cpu_pipeline.CPU)
    # Exactly 1 where nothing may be left of GELU.
    near = np.abs(x) < 3.5
    true = np.where(near, erf(x), np.sign(x)).astype("float32")
    found = tvm.runtime.empty(shape, dtype)
    built["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(true), found)
    errors = np.asarray(found.numpy(), "float64") / scale
    assert np.isnan(errors[np.isnan(x)]).all()
    assert np.abs(errors[near]).max() < 2e-6
    assert 5e-7 < np.abs(errors[near]).max()  # in fewer operations than for all of the digits
    beyond = np.abs(x) >= 3.5
    np.testing.assert_array_equal(errors[beyond], 0)


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
