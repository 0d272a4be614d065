"""Convolutions of 8-bit numbers: against NumPy, and which instructions they are made of."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir

from tests.schedules.harness import AVX2, AVX512, SWEEP, call
from tests.schedules.int8_cases import (
    DENSE,
    DEPTHWISE,
    POINTWISE,
    SDOT,
    SMMLA,
    SMULL,
    WIDE,
    WORKLOADS,
    Case,
    case,
)
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.lowering import cpu_pipeline
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu import schedule
from tvm_edge.schedules.cpu.algorithm import choose_config, config_space
from tvm_edge.schedules.cpu.blocked_knobs import Knobs, best_knobs, candidates
from tvm_edge.schedules.cpu.conv2d_groups import groups_tile
from tvm_edge.schedules.cpu.dot_products import DOT_PRODUCTS
from tvm_edge.schedules.cpu.space_int8 import tile_of, window_of
from tvm_edge.schedules.cpu.window_blocked import size_of_windows
from tvm_edge.schedules.cpu.window_knobs import best_window_knobs, window_candidates
from tvm_edge.schedules.int8 import (
    BLOCK,
    CONV2D_INT8,
)
from tvm_edge.schedules.knobs import knobs_as_text
from tvm_edge.schedules.stages import open_reduction

# What LLVM makes of these kernels is tested as well.
pytestmark = pytest.mark.usefixtures("optimised")

VNNI512 = replace(AVX512, dot_product="vnni512")
VNNI256 = replace(AVX2, dot_product="vnni256")

HERE = resolve_target("llvm").spec.dot_product
RUNS = [spec for spec in (VNNI512, VNNI256) if HERE == "vnni512" or spec.dot_product == HERE]


def assert_exact(made: Case, spec: DeviceSpec, filters: int) -> None:
    done = schedule(made.func, spec)
    assert done.rule == ("depthwise_int8" if len(made.arrays[1].shape) == 5 else "conv2d_int8")
    actual = call(done.func, *made.arrays)
    count = actual.shape[1] * BLOCK
    real = np.arange(count).reshape(1, -1, 1, 1, BLOCK) < filters
    assert np.array_equal(np.where(real, actual, 0), np.where(real, made.expected, 0))


@pytest.mark.skipif(not RUNS, reason="this CPU has no dot products of unsigned 8 bits")
@pytest.mark.diagonals(2)
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("spec", RUNS, ids=lambda spec: spec.dot_product)
def test_sums_are_exact(spec: DeviceSpec, name: str) -> None:
    workload = WORKLOADS[name]
    assert_exact(case(workload), spec, workload.filters)


@pytest.mark.skipif(not RUNS, reason="this CPU has no dot products of unsigned 8 bits")
@pytest.mark.parametrize("workload", [DENSE, POINTWISE], ids=["3x3", "1x1"])
def test_all_knobs_give_the_same_sums(workload: ConvWorkload) -> None:
    sch = s_tir.Schedule(case(workload).func)
    stmt = sch.get(sch.get_sblock(CONV2D_INT8))
    found = candidates(groups_tile(stmt, padded=any(workload.padding)), VNNI512)
    kinds: dict[tuple[object, ...], list[Knobs]] = {}
    for knobs in found:
        kinds.setdefault((knobs.order, knobs.padding, knobs.flat), []).append(knobs)
    assert len(kinds) >= 3
    random = np.random.default_rng(0)
    for own in kinds.values():
        for knobs in random.choice(np.array(own, dtype=object), SWEEP):
            assert_exact(case(workload, config=knobs_as_text(knobs)), RUNS[0], workload.filters)


@pytest.mark.skipif(not RUNS, reason="this CPU has no dot products of unsigned 8 bits")
@pytest.mark.parametrize("workload", [DEPTHWISE, WIDE], ids=["3x3", "2x7"])
def test_all_knobs_of_windows_give_the_same_sums(workload: ConvWorkload) -> None:
    found = window_candidates(window_of(workload, VNNI512), VNNI512)
    assert {knobs.order for knobs in found} == {"lines", "blocks"} and len(found) >= 20
    random = np.random.default_rng(1)
    chosen = random.choice(np.array(found, dtype=object), SWEEP, replace=False)
    for knobs in chosen:
        assert_exact(case(workload, config=knobs_as_text(knobs)), RUNS[0], workload.filters)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(
    "spec", [VNNI512, VNNI256, SDOT, SMMLA, SMULL], ids=lambda spec: spec.dot_product
)
def test_the_space_is_ranked_by_the_sizes_of_the_kernel(name: str, spec: DeviceSpec) -> None:
    """And its first configuration is what the schedule chooses."""
    workload = replace(WORKLOADS[name], dtype="uint8")
    group = DOT_PRODUCTS[spec.dot_product].filter_group(workload)
    opened = open_reduction(case(workload, group=group).func)
    assert opened is not None
    sch, block = opened
    configs = config_space(workload, spec).configs
    assert {(c.algorithm, c.block, c.m) for c in configs} == {("direct", BLOCK, 0)}
    assert len(set(configs)) == len(configs) >= 5
    if workload.depthwise:
        size = window_of(workload, spec)
        image = sch.get(block).reads[0].source
        assert size == size_of_windows(
            sch.get(block), image, padded=size.padded, shifts=size.shifts
        )
        best = knobs_as_text(best_window_knobs(size, spec))
    else:
        tile = tile_of(workload, spec)
        assert tile == groups_tile(sch.get(block), padded=any(workload.padding))
        best = knobs_as_text(best_knobs(tile, spec))
    assert configs[0].knobs == best


def test_without_an_instruction_or_blocks_there_is_no_choice() -> None:
    few = replace(DENSE, filters=4, dtype="uint8")
    for workload, spec in ((replace(DENSE, dtype="uint8"), AVX512), (few, VNNI512)):
        assert config_space(workload, spec).configs == (ConvConfig("plain"),)
        assert choose_config(workload, spec) == ConvConfig("plain")


def assembly(made: Case, spec: DeviceSpec, target: dict[str, Any]) -> str:
    func = schedule(made.func, spec).func.with_attr("global_symbol", "main")
    cpu_pipeline.register()
    with tvm.target.Target(target) as own:
        built = tvm.tirx.build(tvm.IRModule({"main": func}), own, pipeline=cpu_pipeline.CPU)
    return str(built.inspect_source("asm"))


X86 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}
ARM = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}


@pytest.mark.parametrize("name", ["dense", "depthwise"])
@pytest.mark.parametrize(
    ("spec", "target", "instruction"),
    [
        (VNNI512, X86 | {"mcpu": "cascadelake"}, "vpdpbusd"),
        (VNNI256, X86 | {"mcpu": "alderlake"}, "vpdpbusd"),
        (SDOT, ARM | {"mattr": ["+neon", "+dotprod"]}, "sdot"),
    ],
    ids=["avx512-vnni", "avx-vnni", "sdot"],
)
def test_the_code_has_the_instruction(
    name: str, spec: DeviceSpec, target: dict[str, Any], instruction: str, optimised: None
) -> None:
    """And no multiplications of int32 in its place."""
    made = case(WORKLOADS[name], "int8" if instruction == "sdot" else "uint8")
    text = assembly(made, spec, target)
    assert text.count(f"\t{instruction}\t") >= 9
    slow = "vpmulld" if instruction == "vpdpbusd" else "\tmul\tv"
    assert slow not in text
    if spec is VNNI512:
        assert "zmm" in text


@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("dense", "smmla"),
        ("even", "smmla"),
        ("flat", "smmla"),
        ("pointwise", "sdot"),  # lines of 13 pixels
        ("first", "sdot"),  # three channels
        ("depthwise", "sdot"),
    ],
)
def test_two_pixels_are_multiplied_by_two_filters(name: str, instruction: str) -> None:
    """Where lines have pairs of pixels: by one instruction or the other, and nothing is spilled."""
    workload = WORKLOADS[name]
    made = case(workload, "int8", group=DOT_PRODUCTS["smmla"].filter_group(workload))
    text = assembly(made, SMMLA, ARM | {"mattr": ["+neon", "+dotprod", "+i8mm"]})
    assert {one for one in ("smmla", "sdot") if f"\t{one}\t" in text} == {instruction}
    loops = [block for block in re.split(r"\n\.LBB\w+:|\tb\.", text) if "\tsmmla\t" in block]
    assert bool(loops) == (instruction == "smmla")
    for loop in loops:
        assert loop.count("\tsmmla\t") % 16 == 0 and not re.search(r"\tq\d+, .*\[sp", loop)


@pytest.mark.parametrize("name", ["dense", "depthwise"])
@pytest.mark.parametrize("lowest", [False, True])
def test_neon_adds_two_products_in_16_bits(name: str, lowest: bool) -> None:
    """Unless filters have pairs of -128; nothing is multiplied in 32 bits."""
    workload = WORKLOADS[name]
    dot = DOT_PRODUCTS["smull"]
    random = np.random.default_rng(0)
    shape = (workload.filters, workload.channels // workload.groups, *workload.kernel)
    weights = random.integers(-127, 128, shape, "int8")
    if lowest:
        weights.reshape(-1)[:] = -128
    group = dot.filter_group(workload, weights)
    text = assembly(case(workload, "int8", group=group), SMULL, ARM | {"mcpu": "cortex-a72"})
    assert text.count("\tsmull\t") >= 9 and "\tmul\tv" not in text
    assert ("\tsmlal\t" in text) == (not lowest)
    assert ("\tzip1\t" in text) == (lowest and workload.depthwise)  # pixels are transposed


def test_pairs_of_the_lowest_number_are_seen() -> None:
    """Channels two apart are added up, and neighbouring columns."""
    weights = np.full((2, 8, 1, 3), -127, "int8")
    dot = DOT_PRODUCTS["smull"]
    weights[1, 2, 0, 0] = weights[1, 3, 0, 0] = weights[1, 2, 0, 2] = -128
    assert dot.filter_group(DENSE, weights) == 2
    weights[1, 0, 0, 0] = -128
    assert dot.filter_group(DENSE, weights) == 4
    taps = np.full((16, 1, 3, 3), -127, "int8")
    taps[3, 0, 1, 0] = taps[3, 0, 2, 0] = taps[3, 0, 1, 2] = -128
    assert dot.filter_group(DEPTHWISE, taps) == 1
    taps[3, 0, 1, 1] = -128
    assert dot.filter_group(DEPTHWISE, taps) == 4
    assert DOT_PRODUCTS["sdot"].filter_group(DEPTHWISE, weights) == 4


@pytest.mark.parametrize("name", ["depthwise", "square"])
def test_neon_transposes_pixels_once_for_results_that_share_them(name: str) -> None:
    """Two rounds of zips for four vectors; nothing goes through general registers or the stack."""
    even = replace(WORKLOADS[name], width=12)
    text = assembly(case(even, "int8"), SDOT, ARM | {"mattr": ["+neon", "+dotprod"]})
    zips = text.count("\tzip1\t") + text.count("\tzip2\t")
    assert 0 < zips < text.count("\tsdot\t")
    assert "\tumov\t" not in text and "\ttbl\t" not in text
    blocks = [block for block in re.split(r"\n\.LBB\w+:|\tb\.", text) if "\tsdot\t" in block]
    assert len(blocks) == 1 and not re.search(r"\tq\d+, .*\[sp", blocks[0])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (X86 | {"mcpu": "cascadelake"}, "vnni512"),
        (X86 | {"mcpu": "alderlake"}, "vnni256"),
        (X86 | {"mcpu": "skylake-avx512"}, ""),
        (X86 | {"mcpu": "haswell"}, ""),
        (ARM | {"mattr": ["+neon", "+dotprod"]}, "sdot"),
        (ARM | {"mattr": ["+neon", "+dotprod", "+i8mm"]}, "smmla"),
        (ARM | {"mattr": ["+neon", "+i8mm"]}, "smull"),
        (ARM | {"mcpu": "neoverse-n2"}, "smmla"),
        (ARM | {"mattr": ["+neon"]}, "smull"),
        (ARM | {"mcpu": "cortex-a72"}, "smull"),
        (X86 | {"mcpu": "x86-64"}, ""),
    ],
    ids=lambda value: value.get("mcpu", "arm") if isinstance(value, dict) else value or "none",
)
def test_which_cpus_have_one(config: dict[str, Any], expected: str) -> None:
    assert resolve_target(config).spec.dot_product == expected
