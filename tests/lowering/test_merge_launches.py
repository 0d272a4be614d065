"""Launches of several members as one: right on a device, and in its structure without one."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx

from tests.compiler.steps import lowered as lowered_model
from tests.lowering.members import (
    Member,
    assert_barriers_are_met,
    build,
    conv,
    element_wise,
    largest,
    local_bytes,
    pinned,
    product,
    run,
    softmax,
    some,
    sums,
)
from tests.marks import in_full
from tests.schedules.gpu.harness import MALI, ORIN, assert_golden, launches
from tests.schedules.gpu.subgroup_cases import conv as subgroup_conv
from tests.schedules.harness import assert_close
from tvm_edge.errors import MissingDependencyError
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.lowering import merge_launches
from tvm_edge.lowering.flat_launches import FLAT
from tvm_edge.lowering.member_launches import Launches, merged_launches, with_merged_launches
from tvm_edge.lowering.parallel_members import compose, pinned_sub_groups
from tvm_edge.schedules.base import workspace_of
from tvm_edge.schedules.gpu import tiled
from tvm_edge.schedules.gpu.product import Tile
from tvm_edge.schedules.gpu.reduce import Reduce
from tvm_edge.schedules.group_loops import group_loops
from tvm_edge.schedules.vision import gpu as vision

SMALL = replace(ORIN, max_work_group_size=64)

# A tile in parts (two launches, the first with barriers and local memory), groups that share sums,
# and a group of another size without either.
MIXED = (product(1, 33, 700, 40), sums(2, 5, 300), element_wise(3, 4, 7, 9))


def small_tile(extents: tuple[int, int, int, int], *_: object) -> Tile:
    """Groups of 32 or 64 work-items, of little code; sums of many terms are in parts."""
    _, rows, _, terms = extents
    return Tile(32 if rows > 40 else 16, 32, 4, 4, 8, parts=3 if terms >= 300 else 1)


@pytest.fixture(autouse=True)
def small_tiles(pocl_as_written: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "choose_product_tile", small_tile)


def composed(members: list[Member], spec: DeviceSpec) -> tirx.PrimFunc:
    return compose([member.scheduled(spec) for member in members])


def lowered(members: list[Member], spec: DeviceSpec) -> tirx.PrimFunc:
    return with_merged_launches(composed(members, spec), resolve_target("mali-t860").target)


def rules_on(gpu: str, spec: DeviceSpec) -> DeviceSpec:
    """A device's, less what code for CUDA cannot say: OpenCL alone has ``vload4``."""
    return spec if gpu == "opencl" else replace(spec, unaligned_vectors=False)


def check(
    members: list[Member], spec: DeviceSpec, gpu: str, spread: tuple[int, ...] = ()
) -> Launches:
    """Merged, members give what they give alone and what NumPy gives; their launches.

    Those are spread over so many cores, by stage.
    """
    resolved = resolve_target(gpu)
    funcs = [member.scheduled(spec) for member in members]
    inputs = [array for member in members for array in member.inputs]
    made = compose(funcs).with_attr(merge_launches.SPREAD, list(spread))
    results = iter(run(made, inputs, resolved))
    for member, func in zip(members, funcs, strict=True):
        alone, *_ = run(func, member.inputs, resolved)
        together, *_ = [next(results) for _ in range(1 + len(workspace_of(func)))]
        np.testing.assert_array_max_ulp(together, alone, maxulp=2)
        assert_close(together, member.expected.astype("float32"))
    return merged_launches(with_merged_launches(made, resolved.target))


# ---------------------------------------------------------------------------------------- on a GPU


@pytest.mark.parametrize("spec", [SMALL, MALI], ids=["local memory", "without"])
@pytest.mark.parametrize("seed", [0, *in_full(*range(1, 9))])
def test_any_members(seed: int, spec: DeviceSpec, gpu: str) -> None:
    members = some(seed)
    found = check(members, rules_on(gpu, spec), gpu)
    assert found[0] == tuple(range(len(members)))


def test_barriers_and_parts_of_sums(gpu: str) -> None:
    assert [len(launches(m.scheduled(SMALL))) for m in MIXED] == [2, 1, 1]
    assert check(list(MIXED), SMALL, gpu) == ((0, 1, 2), (0,))


@pytest.mark.parametrize("cores", [4, 6, 7])
def test_groups_that_do_several(cores: int, gpu: str) -> None:
    """Members may have barriers, local memory and work-groups left over."""
    assert check(list(MIXED), SMALL, gpu, (cores, 0)) == ((0, 1, 2), (0,))


@pytest.mark.parametrize("spec", [SMALL, MALI], ids=["local memory", "without"])
@pytest.mark.parametrize("seed", [1, *in_full(3, 5, 7, 8)])
def test_groups_of_any_members_that_do_several(seed: int, spec: DeviceSpec, gpu: str) -> None:
    members = some(seed)
    cores = (len(members) + 1) // 2 + seed % 3
    assert check(members, rules_on(gpu, spec), gpu, (cores, cores))[0] == tuple(range(len(members)))


def test_sorts_and_scans(gpu: str) -> None:
    """Kernels of several launches, with barriers in loops, and work-groups of their own sizes."""
    resolved = resolve_target(gpu)
    spec = replace(SMALL, cores=2, max_work_group_size=16)
    how = {"descending": True, "index_dtype": "int32"}
    sorts = [vision.argsort_rows(n, 301, "float32", spec, **how) for n in (2, 1)]
    scan = vision.scan_lines(1, 500, 1, "float32", "float32", spec)
    small = element_wise(5, 3, 5)
    outputs = [*(len(sort.outputs) for sort in sorts), len(scan.outputs), 1]
    made = compose(
        [*(sort.func for sort in sorts), scan.func, small.scheduled(spec)], outputs=outputs
    )
    rows, line = np.random.default_rng(0).standard_normal((2, 602)).astype("float32")
    results = run(made, [rows, rows[301:], line[:500], *small.inputs], resolved)
    first = np.cumsum([0, *outputs])
    order = np.argsort(-rows.reshape(2, 301), axis=1, kind="stable")
    np.testing.assert_array_equal(results[0].reshape(2, 301), order)
    np.testing.assert_array_equal(results[first[1]], order[1])
    assert_close(results[first[2]], np.cumsum(line[:500].astype("float64")).astype("float32"))
    assert_close(results[first[3]], small.expected.astype("float32"))
    func = with_merged_launches(made, resolved.target)
    assert merged_launches(func) == ((0, 1, 2, 3), (0, 1), (0, 1))
    assert assert_barriers_are_met(func) > 0


@pytest.mark.parametrize("spec", [SMALL, MALI], ids=["local memory", "without"])
def test_one_member_twice(spec: DeviceSpec, gpu: str) -> None:
    """The second has work-items along two axes, which stay where they are."""
    same = product(4, 30, 90, 20)
    assert check([same, same], spec, gpu)[0] == (0, 1)


def test_members_that_allocate(gpu: str) -> None:
    """Each has arrays of its own: TVM gives the room of none to the next one."""
    resolved = resolve_target(gpu)
    members = [softmax(1, 5, 90), softmax(2, 5, 90)]
    made = []
    for member in members:
        by_rule = Reduce().apply(member.func, SMALL)
        assert by_rule is not None
        made.append(by_rule.mod["main"].with_attrs(member.func.attrs))
    func = compose(made)
    results = run(func, [array for m in members for array in m.inputs], resolved)
    for member, result in zip(members, results, strict=True):
        assert_close(result, member.expected.astype("float32"))
    found = merged_launches(with_merged_launches(func, resolved.target))
    assert len(found) > 1 and set(found) == {(0, 1)}


def test_grids_of_a_cpu(gpu: str) -> None:
    """OpenCL devices that are CPUs launch the loops of a CPU."""
    spec = resolve_target(gpu).spec
    if not spec.on_cpu:
        pytest.skip(f"{spec.name} is no CPU")
    members = [product(2, 9, 40, 21), softmax(3, 9, 40), element_wise(4, 70, 80)]
    assert check(members, spec, gpu)[0] == (0, 1, 2)


# ------------------------------------------------------------------------------------ its structure


def kernels(source: str) -> list[str]:
    """The definitions of kernels in a source."""
    return re.findall(r"__(?:kernel|global__)[^;{]*\{.*?\n\}", source, re.DOTALL)


def source(func: tirx.PrimFunc, target: str) -> str:
    try:
        built = build(func, resolve_target(target))
    except MissingDependencyError as missing:
        pytest.skip(str(missing))
    return str(built.imports[0].inspect_source())


def test_a_stage_is_one_kernel() -> None:
    text = source(composed(list(MIXED), SMALL), "mali-t860")
    assert len(kernels(text)) == 2
    alone = [source(m.scheduled(SMALL), "mali-t860") for m in MIXED]
    assert sum(len(kernels(one)) for one in alone) == 4
    # All work-items of a group meet: as many times as in the members, at the top of their branch.
    assert text.count("barrier(") == sum(one.count("barrier(") for one in alone)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("seed", range(6))
def test_every_work_item_reaches_every_barrier(seed: int) -> None:
    members = [*some(seed), product(seed, 33, 700, 40), sums(seed, 5, 300)]
    assert assert_barriers_are_met(lowered(members, SMALL)) > 0


def test_groups_are_those_of_all_members() -> None:
    func = lowered(list(MIXED), SMALL)
    alone = [launches(m.scheduled(SMALL)) for m in MIXED]
    assert _grid(func) == {
        "blockIdx.x": sum(own[0].groups for own in alone),
        "threadIdx.x": max(own[0].items for own in alone),
    }
    assert _grid(func, 1)["blockIdx.x"] == alone[0][1].groups


@pytest.mark.parametrize("cores", [4, 7])
def test_fewer_groups(cores: int) -> None:
    """A loop around what a group of a member does; the next launch is as it was."""
    members, target = list(MIXED), resolve_target("mali-t860").target
    counts = [launches(m.scheduled(SMALL))[0].groups for m in members]
    loops = group_loops(counts, cores)
    assert loops is not None
    given = [-(-count // loop) for count, loop in zip(counts, loops, strict=True)]
    made = composed(members, SMALL).with_attr(merge_launches.SPREAD, [cores, 0])
    func = with_merged_launches(made, target)
    assert _grid(func)["blockIdx.x"] == sum(given) <= 2 * cores - 1 < sum(counts)
    turns: list[int] = []
    guards = 0

    def loop(node: tirx.For) -> None:
        if node.loop_var.name == "turn":
            turns.append(int(node.extent))

    def guard(node: tirx.IfThenElse) -> None:
        nonlocal guards
        guards += str(node.condition).count("turn") > 0

    tvm_ffi.structural_walk(func.body, ((tirx.For, loop), (tirx.IfThenElse, guard)))
    assert sorted(turns) == sorted(n for n in loops if n > 1)
    # Where the last turn is of some groups alone: 18 by 4.
    assert guards == sum(count % own > 0 for count, own in zip(counts, given, strict=True))
    assert assert_barriers_are_met(func) > assert_barriers_are_met(lowered(members, SMALL))
    assert _grid(func, 1) == _grid(lowered(members, SMALL), 1)


def _grid(func: tirx.PrimFunc, launch: int = 0) -> dict[str, int]:
    """The extents of one of a lowered kernel's launches."""
    found: list[dict[str, int]] = []

    def visit(node: tirx.AttrStmt) -> None:
        if node.attr_key == "thread_extent":
            if str(node.node.thread_tag) == "blockIdx.x":
                found.append({})
            found[-1][str(node.node.thread_tag)] = int(node.value)

    tvm_ffi.structural_walk(func.body, (tirx.AttrStmt, visit), order="pre")
    return found[launch]


def test_members_use_the_same_local_memory() -> None:
    """Whatever it holds; none is as large as all of theirs."""
    members = [product(1, 40, 64, 40), product(2, 64, 128, 64), largest(3, 4, 300)]
    alone = [max(local_bytes(lowered([m, m], ORIN))) for m in members]
    assert len(set(alone)) > 1 and min(alone) > 0
    assert local_bytes(lowered(members, ORIN))[0] == max(alone)
    text = source(composed(members, ORIN), "mali-t860")
    first = kernels(text)[0]
    assert len(re.findall(r"__local \w+ \w+\[", first)) == 1


def test_work_items_of_one_shape_stay_where_they_are() -> None:
    """Members of the same groups need no numbers; of others, work-items go by theirs."""
    square, other = product(1, 8, 40, 24), element_wise(2, 4, 5)

    def items(*members: Member) -> dict[str, int]:
        grid = _grid(lowered(list(members), MALI))
        return {axis: size for axis, size in grid.items() if axis.startswith("threadIdx")}

    alone = launches(square.scheduled(MALI))[0].items
    assert len(items(square, square)) > 1 and prod(items(square, square).values()) == alone
    assert items(square, other) == {"threadIdx.x": alone}


# ------------------------------------------------------------------------------------------ limits


def test_more_local_memory_than_there_is() -> None:
    members = [product(1, 40, 64, 40), largest(2, 4, 300)]
    made = composed(members, ORIN)
    config = dict(resolve_target("mali-t860").target.export())
    whole = local_bytes(with_merged_launches(made, tvm.target.Target(config)))[0]
    for limit, expected in ((whole, (0, 1)), (whole - 1, (0,))):
        target = tvm.target.Target({**config, "max_shared_memory_per_block": limit})
        assert merged_launches(with_merged_launches(made, target))[0] == expected


def test_more_arguments_than_a_launch_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [element_wise(i, 5, 6) for i in range(5)]
    monkeypatch.setattr(merge_launches, "MOST_ARGUMENTS", 7)
    assert merged_launches(lowered(members, MALI)) == ((0, 1), (2, 3), (4,))


def test_sub_groups_that_are_not_whole() -> None:
    """All of a required sub-group has work, or none of it."""
    small = element_wise(1, 20)
    large = element_wise(2, 64, 64)
    funcs = [pinned(small, 32, MALI), large.scheduled(MALI)]
    items = [launches(func)[0].items for func in funcs]
    assert items[0] % 32 and items[0] < items[1]
    target = resolve_target("mali-t860").target
    assert merged_launches(with_merged_launches(compose(funcs), target)) == ((0,), (1,))
    funcs[0] = pinned(large, 32, MALI)
    assert merged_launches(with_merged_launches(compose(funcs), target)) == ((0, 1),)
    text = source(compose(funcs), "mali-t860")
    assert text.count("intel_reqd_sub_group_size(32)") == 1


def test_sub_groups() -> None:
    """Kernels of Intel's: the merged one requires the size that each of them does."""
    model = subgroup_conv(1, 4, 6, 24, outputs=4, kernel=(3, 3), pads=[1] * 4).model()
    plan = lowered_model(model, "intel-hd505", "none", host="llvm", precision="float32")
    funcs = [func for _, func in plan.module.functions_items() if isinstance(func, tirx.PrimFunc)]
    assert pinned_sub_groups(funcs[0].body) == {8}
    made = compose([funcs[0], funcs[0]])
    assert merged_launches(with_merged_launches(made, plan.resolved.target)) == ((0, 1),)
    text = source(made, "intel-hd505")
    assert text.count("intel_reqd_sub_group_size(8)") == 1 and "_sub_group_size(8);" not in text
    assert text.count("= (convert_int(get_sub_group_local_id()));") == 2


# ------------------------------------------------------------------------------- what is generated


def test_cuda() -> None:
    text = source(composed(list(MIXED), SMALL), "jetson-orin-nano")
    definitions = kernels(text)
    assert len(definitions) == 2
    assert text.count("__syncthreads()") > 2
    assert len(re.findall(r"__shared__", definitions[0])) == 1


def test_generated_code_is_what_was_read() -> None:
    members = [sums(1, 3, 200), conv(2, 2, 5, 4, 1), element_wise(3, 4, 7, 9)]
    assert_golden(source(composed(members, MALI), "mali-t860"), "merged_launches.cl")


# ------------------------------------------------------------------------ ranges of work-items


@pytest.mark.parametrize("wave", [1, 32])
def test_ranges_of_work_items(wave: int, gpu: str) -> None:
    """The paper's, rounded to waves or not; for members without barriers."""
    resolved = resolve_target(gpu)
    members = [element_wise(1, 5, 7), element_wise(2, 4, 9, 3), conv(3, 4, 7, 6)]
    funcs = [member.scheduled(rules_on(gpu, MALI)) for member in members]
    made = compose(funcs).with_attr(FLAT, wave)
    inputs = [array for member in members for array in member.inputs]
    sizes = [1 + len(workspace_of(func)) for func in funcs]
    results = run(made, inputs, resolved)
    for member, first in zip(members, np.cumsum([0, *sizes]), strict=False):
        assert_close(results[first], member.expected.astype("float32"))
    func = with_merged_launches(made, resolved.target)
    assert merged_launches(func)[0] == (0, 1, 2)
    counts = [launches(func)[0].groups * launches(func)[0].items for func in funcs]
    size = max(launches(func)[0].items for func in funcs)
    total = sum(-(-count // wave) * wave for count in counts)
    assert _grid(func) == {"blockIdx.x": -(-total // size), "threadIdx.x": size}


def test_members_with_barriers_go_by_groups() -> None:
    funcs = [member.scheduled(SMALL) for member in MIXED]
    made = compose(funcs).with_attr(FLAT, 32)
    lowered = with_merged_launches(made, resolve_target("mali-t860").target)
    assert assert_barriers_are_met(lowered) > 0
