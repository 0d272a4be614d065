"""Convolutions by sub-groups of Intel's GPUs: what is generated, and that it is right."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, tirx

import tvm_edge
from tests.onnx_models import reference, relative_error
from tests.runtime.support import run_child
from tests.schedules.gpu.intel_runtime import HOW_TO_GET_ONE, sub_group_environment
from tests.schedules.gpu.lanes import Lanes
from tests.schedules.gpu.subgroup_cases import CASES, SIZES, conv
from tests.schedules.harness import TOLERANCE, Graph, sweep
from tvm_edge.compiler import driver, phases
from tvm_edge.compiler.build import build
from tvm_edge.frontend import load_model
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.hardware.presets import PRESETS
from tvm_edge.lowering.opencl_subgroups import pinned_sub_groups, with_pinned_size
from tvm_edge.schedules.blocked import ConvWorkload
from tvm_edge.schedules.gpu import schedule
from tvm_edge.schedules.gpu.algorithm import choose_config, config_space
from tvm_edge.schedules.gpu.subgroup_calls import PIN
from tvm_edge.schedules.gpu.subgroup_tile import choose_sub_group_tile

HD505 = PRESETS["intel-hd505"].spec
GOLDEN = Path(__file__).parent / "golden" / "intel_hd505_conv.cl"
HOOK = "tvm_callback_opencl_postproc"


def opencl_source(model: onnx.ModelProto, target: str) -> str:
    """The OpenCL C of all kernels that a model has on a target."""
    plan = driver._plan(model, target, None, "none", host="llvm")
    found: list[str] = []

    def collect(module: Any) -> None:
        if module.kind == "opencl":
            found.append(module.inspect_source())
        for imported in module.imports:
            collect(imported)

    collect(build(plan.lowered, plan.resolved)._executable.mod)
    return "\n".join(found)


def run_in_lanes(graph: Graph, spec: DeviceSpec) -> tuple[np.ndarray, list[str], list[Lanes]]:
    """A model's output, its rules and what its kernels of sub-groups called, without a device."""
    resolved = replace(resolve_target("intel-hd505", host="llvm"), spec=spec)
    with resolved.cpu.target:
        simple = phases.SIMPLIFY(load_model(graph.model(), None).module)
    with resolved.target:
        fused = phases.FUSE(phases.GROUP(phases.legalize(resolved)(simple)))
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


def workload(**changes: Any) -> ConvWorkload:
    """A 3x3 convolution of ResNet's, with changes."""
    usual = ConvWorkload(1, 64, 28, 28, 64, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1)
    return replace(usual, **changes)


# ------------------------------------------------------------------------------ what is generated


def test_golden_source() -> None:
    """The source of one convolution; TVM_EDGE_UPDATE_GOLDEN=1 writes it anew, for you to read."""
    made = opencl_source(
        conv(1, 4, 6, 24, outputs=4, kernel=(3, 3), pads=[1] * 4).model(), "intel-hd505"
    )
    if os.environ.get("TVM_EDGE_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(made)
    assert made == GOLDEN.read_text()


def test_sources_use_what_sub_groups_have() -> None:
    """Each kernel its size; weights, lines of the input and results as blocks; shuffles."""
    graph = CASES["mobile"][0](0)
    kernels = opencl_source(graph.model(), "intel-hd505").split("// Function: ")[1:]
    assert len(kernels) == 2
    for source in kernels:
        sizes = re.findall(
            r"__kernel __attribute__\(\(intel_reqd_sub_group_size\((\d+)\)\)\) void", source
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


@pytest.mark.parametrize("target", ["mali-t860", "adreno-640", "jetson-orin-nano"])
def test_other_gpus_do_not(target: str) -> None:
    report = tvm_edge.analyze(CASES["mobile"][0](0).model(), target)
    assert not any("subgroup" in kernel.rule for kernel in report.kernels)
    if PRESETS[target].api == "opencl":
        source = opencl_source(CASES["mobile"][0](0).model(), target)
        assert "__kernel" in source and "sub_group" not in source


def test_a_cpu_keeps_its_own_schedules() -> None:
    """Drivers of CPUs have sub-groups too, which gain nothing there."""
    assert choose_config(workload(), HD505).algorithm == "subgroup"
    assert choose_config(workload(), replace(HD505, on_cpu=True)).algorithm != "subgroup"


# ------------------------------------------------------------------------------------- the size


def test_a_source_gets_the_size_that_it_is_marked_with() -> None:
    source = f"__kernel void f(int a);\n__kernel void f(int a) {{\n  {PIN}(16);\n  a = 1;\n}}\n"
    required = "__kernel __attribute__((intel_reqd_sub_group_size(16))) void f(int a)"
    assert with_pinned_size(source) == f"{required};\n{required} {{\n  a = 1;\n}}\n"
    plain = "__kernel void g() {}\n"
    assert with_pinned_size(plain) == plain
    with pytest.raises(ValueError, match="16 and of 8"):
        with_pinned_size(source.replace("a = 1;", f"\n  {PIN}(8);\n"))


def test_the_hook_is_gone_after_a_compilation() -> None:
    assert tvm_ffi.get_global_func(HOOK, allow_missing=True) is None
    with pytest.raises(RuntimeError, match="in between"), pinned_sub_groups():
        with pinned_sub_groups():
            assert tvm_ffi.get_global_func(HOOK, allow_missing=True) is not None
        assert tvm_ffi.get_global_func(HOOK, allow_missing=True) is not None
        raise RuntimeError("in between")
    assert tvm_ffi.get_global_func(HOOK, allow_missing=True) is None


def test_the_hook_of_another_user_is_called_and_stays() -> None:
    def other(source: str, _target: Any) -> str:
        return f"/* of another user */\n{source}"

    tvm_ffi.register_global_func(HOOK, other)
    try:
        graph = conv(1, 4, 6, 24, outputs=4, kernel=(3, 3))
        made = opencl_source(graph.model(), "intel-hd505")
        assert "of another user" in made and "intel_reqd_sub_group_size" in made
        assert "of another user" in tvm_ffi.get_global_func(HOOK)("", None)
        assert "reqd" not in tvm_ffi.get_global_func(HOOK)(
            f"__kernel void f() {{\n{PIN}(8);\n}}", None
        )
    finally:
        tvm_ffi.registry.remove_global_func(HOOK)


# ------------------------------------------------------------------------------------- the tile


@pytest.mark.parametrize(
    "own",
    [
        workload(),
        workload(
            channels=3, height=224, width=224, kernel=(7, 7), strides=(2, 2), padding=(3,) * 4
        ),
        workload(channels=512, filters=512, height=7, width=7),
        workload(kernel=(1, 1), padding=(0,) * 4, filters=256),
        workload(groups=64),
        workload(groups=32),
        workload(kernel=(1, 31), padding=(0, 15, 0, 15)),
    ],
)
@pytest.mark.parametrize("sizes", [(8, 16, 32), (8,), (16,), (32,), (64, 16, 128), (4,)])
def test_tiles_are_within_the_register_file(own: ConvWorkload, sizes: tuple[int, ...]) -> None:
    tile = choose_sub_group_tile(own, replace(HD505, sub_groups=sizes))
    if tile is None:
        assert sizes == (4,) or own.kernel[1] > 7
        return
    assert tile.size in sizes
    assert tile.size * tile.registers(own.kernel) * 4 <= 4096
    assert tile.channels == 1 or own.groups < own.filters
    assert tile.pitch(own.kernel) % tile.size == 0


def test_tiles_shrink_to_what_a_device_takes() -> None:
    tile = choose_sub_group_tile(workload(), replace(HD505, max_work_group_size=8))
    assert tile is not None and tile.size == 8
    small = replace(HD505, max_work_group_size=4)
    assert choose_sub_group_tile(workload(), small) is None
    assert choose_config(workload(), small).algorithm != "subgroup"
    # Kernels have 32-bit indices.
    assert choose_sub_group_tile(workload(height=8192, width=8192), HD505) is None


def test_filters_packed_for_another_device_go_to_another_rule() -> None:
    """What a rule refuses is still right: packed filters are a convolution to all of them."""
    resolved = resolve_target("intel-hd505", host="llvm")
    with resolved.cpu.target:
        simple = phases.SIMPLIFY(load_model(CASES["odd"][0](0).model(), None).module)
    with resolved.target:
        fused = phases.FUSE(phases.GROUP(phases.legalize(resolved)(simple)))
    (func,) = (f for _, f in fused.functions_items() if isinstance(f, tirx.PrimFunc))
    assert schedule(func, HD505).rule == "subgroup"
    for spec in (replace(HD505, sub_groups=()), replace(HD505, max_work_group_size=4)):
        assert schedule(func, spec).rule not in ("subgroup", "fallback")


def test_the_space_of_configurations_begins_with_what_is_chosen() -> None:
    space = config_space(workload(), HD505)
    assert space.configs[0] == choose_config(workload(), HD505)
    assert {c.algorithm for c in space.configs} > {"subgroup", "plain"}


# ---------------------------------------------------------------------------- right, and in bounds


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_lanes(name: str, size: int) -> None:
    """Without a device: no element out of bounds, nothing in divergent flow, and right."""
    make, rules = CASES[name]
    graph = make(7)
    if name == "long window" and size == 32:
        pytest.skip("its weights take more registers than a lane of 32 has")
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
@sweep(25)
def test_any_convolution_and_tile(data: st.DataObject) -> None:
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    size, groups = data.draw(st.sampled_from(SIZES)), draw(1, 3)
    kernel = draw(1, 4), draw(1, 4)
    strides, dilations = [draw(1, 3), draw(1, 3)], [draw(1, 2), draw(1, 3)]
    pads = [draw(0, 2) for _ in range(4)]
    own = draw(1, 3)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    graph = conv(
        draw(1, 2),
        own * groups,
        draw(reach[0], reach[0] + 6),
        draw(reach[1], reach[1] + 40),
        outputs=groups * draw(1, 5),
        kernel=kernel,
        seed=draw(0, 99),
        group=groups,
        strides=strides,
        dilations=dilations,
        pads=pads,
    )
    result, rules, _ = run_in_lanes(graph, replace(HD505, sub_groups=(size,)))
    assert set(rules) <= {"subgroup", "subgroup_depthwise"}
    assert_right(result, graph)


# --------------------------------------------------------------------------------------- a device


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Of child processes that have a device with sub-groups; skips where there is none."""
    found = sub_group_environment(tmp_path_factory.mktemp("icd"))
    if found is None:
        pytest.skip(HOW_TO_GET_ONE)
    return found


@pytest.mark.parametrize("size", SIZES)
def test_on_a_device(
    size: int, environment: dict[str, str | None], request: pytest.FixtureRequest
) -> None:
    """Fresh random inputs, against ONNX Runtime; some of the cases unless ``-m full`` is asked."""
    full = "not full" not in str(request.config.option.markexpr)
    names = [name for i, name in enumerate(CASES) if full or i % len(SIZES) == SIZES.index(size)]
    names += [] if "mobile" in names else ["mobile"]
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    arguments = ["-m", "tests.schedules.gpu.subgroup_cases", str(size), str(seed), *names]
    done = run_child(arguments, environment=environment, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["case"] for result in results] == names
    for result in results:
        assert result["error"] <= TOLERANCE, f"seed {seed}: {result}"
        _, rules = CASES[result["case"]]
        if (result["case"], size) != ("long window", 32):
            assert result["rules"] == rules
