"""Convolutions by sub-groups of Intel's GPUs: what is generated, and that it is right."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tvm import relax, tirx

import tvm_edge
from tests.compiler.steps import fuse_kernels, legalized, simplified
from tests.marks import in_full
from tests.onnx_models import reference, relative_error
from tests.runtime.support import run_child
from tests.schedules.gpu.harness import assert_golden, opencl_source
from tests.schedules.gpu.intel_runtime import HOW_TO_GET_ONE, sub_group_environment
from tests.schedules.gpu.lanes import Lanes
from tests.schedules.gpu.subgroup_cases import CASES, RUNS, SIZES, conv
from tests.schedules.harness import TOLERANCE, Graph, sweep
from tvm_edge.frontend import load_model
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.hardware.presets import PRESETS
from tvm_edge.schedules.gpu import algorithm, schedule
from tvm_edge.schedules.gpu.subgroup_calls import PIN
from tvm_edge.schedules.gpu.subgroup_tile import SubGroupTile

HD505 = PRESETS["intel-hd505"].spec


def run_in_lanes(graph: Graph, spec: DeviceSpec) -> tuple[np.ndarray, list[str], list[Lanes]]:
    """A model's output, its rules and what its kernels of sub-groups called, without a device."""
    resolved = replace(resolve_target("intel-hd505", host="llvm"), spec=spec)
    with resolved.cpu.target:
        simple = simplified(load_model(graph.model(), None).module)
    with resolved.target:
        fused = fuse_kernels(legalized(simple, resolved), resolved)
    values: dict[Any, np.ndarray] = dict(
        zip(fused["main"].params, graph.values.values(), strict=True)
    )
    rules, runs = [], []
    (block,) = fused["main"].body.blocks
    for binding in block.bindings:
        if isinstance(binding.value, relax.Var):
            values[binding.var] = values[binding.value]
            continue
        kernel, arguments = binding.value.args[:2]
        result = np.full([int(dim) for dim in binding.var.ty.shape], np.nan, "float32")
        tensors = [values[a] if isinstance(a, relax.Var) else a.value.numpy() for a in arguments]
        made = schedule(fused[kernel], spec)
        rules.append(made.rule)
        runs.append(Lanes(made.func, [*(np.ascontiguousarray(t) for t in tensors), result]))
        values[binding.var] = result
    return values[fused["main"].body.body], rules, runs


def assert_right(actual: np.ndarray, graph: Graph) -> None:
    (expected,) = reference(graph.model(), graph.values).values()
    assert actual.shape == expected.shape
    assert relative_error(actual, expected) <= TOLERANCE


# ------------------------------------------------------------------------------ what is generated


def test_golden_source() -> None:
    model = conv(1, 4, 6, 24, outputs=4, kernel=(3, 3), pads=[1] * 4).model()
    assert_golden(opencl_source(model, "intel-hd505"), "intel_hd505_conv.cl")


def test_sources_use_what_sub_groups_have() -> None:
    """Each kernel its size; weights, lines of the input and results as blocks; shuffles."""
    graph = CASES["mobile"][0](0)
    kernels = opencl_source(graph.model(), "intel-hd505").split("// Function: ")[1:]
    assert len(kernels) == 2
    for source in kernels:
        sizes = re.findall(
            r"__kernel __attribute__\(\(intel_reqd_sub_group_size\((\d+)\)\)\) .*void", source
        )
        assert set(map(int, sizes)) <= set(HD505.sub_groups) and sizes
        assert PIN not in source and "barrier" not in source and "__local" not in source
        assert "as_float(intel_sub_group_block_read(" in source
        assert "intel_sub_group_block_write(" in source
        assert "intel_sub_group_shuffle(" in source


def test_intel_graphics_runs_convolutions_by_sub_groups() -> None:
    report = tvm_edge.compile(CASES["mobile"][0](0).model(), "intel-hd505", host="llvm").report
    assert [kernel.rule for kernel in report.kernels] == ["subgroup_depthwise", "subgroup"]
    assert {kernel.origin for kernel in report.kernels} == {"heuristic"}


def test_filters_packed_for_another_device_go_to_another_rule() -> None:
    """A rule that refuses packed filters leaves them to another, which is right as well."""
    resolved = resolve_target("intel-hd505", host="llvm")
    with resolved.cpu.target:
        simple = simplified(load_model(CASES["odd"][0](0).model(), None).module)
    with resolved.target:
        fused = fuse_kernels(legalized(simple, resolved), resolved)
    (func,) = (f for _, f in fused.functions_items() if isinstance(f, tirx.PrimFunc))
    assert schedule(func, HD505).rule == "subgroup"
    for spec in (replace(HD505, sub_groups=()), replace(HD505, max_work_group_size=4)):
        assert schedule(func, spec).rule not in ("subgroup", "fallback")


@pytest.mark.parametrize("target", ["mali-t860", "adreno-640", "jetson-orin-nano"])
def test_other_gpus_do_not(target: str) -> None:
    report = tvm_edge.analyze(CASES["mobile"][0](0).model(), target)
    assert not any("subgroup" in kernel.rule for kernel in report.kernels)
    if PRESETS[target].api == "opencl":
        source = opencl_source(CASES["mobile"][0](0).model(), target)
        assert "__kernel" in source and "sub_group" not in source


# ---------------------------------------------------------------------------- right, and in bounds


@pytest.mark.diagonals(4)
@pytest.mark.parametrize(("name", "size"), RUNS)
def test_lanes(name: str, size: int) -> None:
    """Without a device: no element out of bounds, nothing in divergent flow, and right."""
    make, rules = CASES[name]
    graph = make(7)
    result, found, runs = run_in_lanes(graph, replace(HD505, sub_groups=(size,)))
    assert found == rules
    assert_right(result, graph)
    for run in runs:
        assert run.calls["intel_sub_group_block_read"] > 0


def test_whole_lines_are_blocks() -> None:
    """Where the width is a multiple of the size, every result is part of a block write."""
    graph = conv(1, 4, 6, 64, outputs=8, kernel=(3, 3), pads=[1] * 4)
    _, _, (run,) = run_in_lanes(graph, replace(HD505, sub_groups=(16,)))
    assert run.calls["intel_sub_group_block_write"] == 8 * 6 * 64 // 16
    flat = conv(1, 4, 7, 16, outputs=8, kernel=(1, 1))
    _, _, (run,) = run_in_lanes(flat, replace(HD505, sub_groups=(16,)))
    assert run.calls["intel_sub_group_block_write"] == 8 * 7 * 16 // 16


@given(st.data())
@sweep(12)
def test_any_convolution_and_tile(data: st.DataObject) -> None:
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    size, groups = data.draw(st.sampled_from(SIZES)), draw(1, 3)
    kernel = draw(1, 4), draw(1, 4)
    strides, dilations = [draw(1, 3), draw(1, 3)], [draw(1, 2), draw(1, 3)]
    pads = [draw(0, 2) for _ in range(4)]
    own = draw(1, 3)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    height, width = reach[0] + draw(0, 6), reach[1] + draw(0, 40)
    lines = (height + pads[0] + pads[2] - reach[0]) // strides[0] + 1
    columns = (width + pads[1] + pads[3] - reach[1]) // strides[1] + 1
    assume(lines * columns >= 8)
    graph = conv(
        draw(1, 2),
        own * groups,
        height,
        width,
        outputs=groups * draw(1, 5),
        kernel=kernel,
        seed=draw(0, 99),
        group=groups,
        strides=strides,
        dilations=dilations,
        pads=pads,
    )
    tile = SubGroupTile(size, draw(1, 9), draw(1, 4))
    with pytest.MonkeyPatch.context() as patch:
        if draw(0, 1):
            patch.setattr(algorithm, "choose_sub_group_tile", lambda *_: tile)
        result, rules, _ = run_in_lanes(graph, replace(HD505, sub_groups=(size,)))
    assert set(rules) <= {"subgroup", "subgroup_depthwise"}
    assert_right(result, graph)


# --------------------------------------------------------------------------------------- a device


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Environment of child processes whose device has sub-groups; skips where there is none."""
    found = sub_group_environment(tmp_path_factory.mktemp("icd"))
    if found is None:
        pytest.skip(f"no OpenCL device here has Intel's sub-groups: {HOW_TO_GET_ONE}")
    return found


def some(names: list[str], size: int) -> list[str]:
    """Every sixth case, of each size others, and the one that is exported once."""
    chosen = names[SIZES.index(size) :: 2 * len(SIZES)]
    return [*chosen, "mobile"] if size == SIZES[0] else chosen


@pytest.mark.parametrize("how_many", ["some", *in_full("all")])
@pytest.mark.parametrize("size", SIZES)
def test_on_a_device(size: int, how_many: str, environment: dict[str, str | None]) -> None:
    """Fresh random inputs, against ONNX Runtime."""
    names = [name for name, own in RUNS if own == size]
    names = some(names, size) if how_many == "some" else names
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    arguments = ["-m", "tests.schedules.gpu.subgroup_cases", str(size), str(seed), *names]
    done = run_child(arguments, environment=environment, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["case"] for result in results] == names
    for result in results:
        assert result["error"] <= TOLERANCE, f"seed {seed}: {result}"
        assert result["rules"] == CASES[result["case"]][1]
