"""Loads for the next iteration change no bit, and read nothing beyond the arrays."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np
import pytest
import tvm

from tvm_edge.hardware import resolve_target
from tvm_edge.lowering import cpu_pipeline
from tvm_edge.lowering.tvm_passes import register_pipeline
from tvm_edge.schedules import cpu
from tvm_edge.schedules.accesses import nodes_in
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.tuning.candidates import convolution_function

CORE = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a55", "num-cores": 4}
DIRECT = ConvConfig("direct", 4)
POINTWISE = ConvWorkload(1, 64, 6, 9, 16, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1)
# A nest of two loops, over blocks of channels and lines of the window.
STRIDED = ConvWorkload(1, 20, 9, 12, 32, (3, 3), (2, 2), (0, 0, 0, 0), (1, 1), 1)


def _compile(workload: ConvWorkload, *, ahead: bool) -> tuple[tvm.runtime.Module, int]:
    """Compile what a core in order is given for the CPU here; and count arrays of loads ahead."""
    core, here = resolve_target(CORE), resolve_target("llvm").target
    bound: list[tvm.target.Target] = []
    counts: list[int] = []

    def for_core(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        bound.append(mod["kernel"].attrs["target"])
        return tvm.IRModule({"kernel": mod["kernel"].with_attr("target", core.target)})

    def for_here(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        arrays = nodes_in(mod["kernel"].body, tvm.tirx.AllocBuffer)
        counts.append(sum(each.buffer.name == "ahead" for each in arrays))
        return tvm.IRModule({"kernel": mod["kernel"].with_attr("target", bound[0])})

    passes = list(cpu_pipeline.PASSES)
    names = [one.info.name for one in passes]
    first, last = names.index("VectorElements"), names.index("AheadLoads")
    as_core, back = (tvm.transform.module_pass(one, opt_level=0) for one in (for_core, for_here))
    passes[first : last + 1] = [as_core, *passes[first : last + ahead], back]
    register_pipeline(f"test.ahead_loads.{ahead}", passes)
    func, _ = convolution_function(workload, DIRECT, core.spec)
    func = cpu.schedule(func, core.spec).func.with_attr("global_symbol", "kernel")
    with here:
        module = tvm.IRModule({"kernel": func})
        built = tvm.tirx.build(module, target=here, pipeline=f"test.ahead_loads.{ahead}")
    return built, counts[0]


def _before_a_hole(shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Return numbers behind whose last one nothing may be read."""
    count = int(np.prod(shape))
    pages = -(-4 * count // mmap.PAGESIZE)
    area = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    whole = np.frombuffer(area, "float32")
    hole = ctypes.c_void_p(whole.ctypes.data + pages * mmap.PAGESIZE)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(hole, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    values = whole[pages * mmap.PAGESIZE // 4 - count :][:count]
    values[:] = rng.standard_normal(count)
    return values.reshape(shape)


@pytest.mark.parametrize("workload", [POINTWISE, STRIDED], ids=["1x1", "3x3"])
def test_same_bits_from_within_the_arrays(workload: ConvWorkload) -> None:
    rng = np.random.default_rng()
    *given, result = convolution_function(workload, DIRECT, resolve_target(CORE).spec)[1]
    inputs = [_before_a_hole(shape, rng) for shape in given]
    results = []
    for ahead in (False, True):
        module, arrays = _compile(workload, ahead=ahead)
        assert (arrays > 0) == ahead
        found = tvm.runtime.empty(result, "float32")
        module["kernel"](*map(tvm.runtime.from_dlpack, inputs), found)
        results.append(found.numpy())
    np.testing.assert_array_equal(*results)
    assert results[0].any()
