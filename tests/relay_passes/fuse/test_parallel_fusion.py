"""Independent kernels in one launch: what is merged, and that results stay."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm import tirx

import tvm_edge
from tests.compiler.steps import lowered as lowered_model
from tests.marks import in_full
from tests.onnx_models import make_model, reference, relative_error
from tests.relay_passes.concatenations import conv, fire, inception
from tests.relay_passes.fusion_groups import compiled, groups, shared_and_in_place, two_networks
from tests.schedules.harness import Graph
from tvm_edge.compiler import parallel_fusion
from tvm_edge.hardware import resolve_target
from tvm_edge.lowering.member_launches import merged_launches, with_merged_launches
from tvm_edge.lowering.parallel_members import PARALLEL
from tvm_edge.relay_passes.fuse.parallel_fusion import ParallelFusion
from tvm_edge.relay_passes.ir.aliases import Lives
from tvm_edge.relay_passes.ir.dependences import dependences
from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, all_bindings, is_call
from tvm_edge.schedules import parallel_policy
from tvm_edge.schedules.parallel_policy import Group, Problem


def together(model: tvm_edge.CompiledModel, *operators: str) -> bool:
    return any(set(operators) <= group for group in groups(model))


def heads(graph: Graph) -> None:
    """SSD: two heads on each of two scales."""
    data = conv(graph, graph.input(1, 8, 12, 10), 8, 16)
    deeper = conv(graph, graph.op("MaxPool", data, kernel_shape=[2, 2], strides=[2, 2]), 16, 24)
    for features, channels in ((data, 16), (deeper, 24)):
        for count in (8, 12):
            head = conv(graph, features, channels, count)
            graph.output(graph.op("Transpose", head, perm=[0, 2, 3, 1]))


MODELS = [fire, inception, heads, two_networks, shared_and_in_place]


# No concatenations: kernels of CPUs are given where in one they write, and such stay alone.
@pytest.mark.parametrize("build", [shared_and_in_place, *in_full(heads, two_networks)])
def test_on_a_cpu(build: Callable[[Graph], None]) -> None:
    graph = Graph()
    build(graph)
    assert groups(compiled(graph, "llvm"))


@pytest.fixture
def as_large(large_gpu: None, pocl_as_written: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large GPU, for which the policy decides as it does for one."""
    monkeypatch.setattr(parallel_fusion, "fuses_by_itself", parallel_policy.fuses_by_itself)


@pytest.mark.parametrize(
    "build", [shared_and_in_place, *in_full(fire, heads, inception, two_networks)]
)
def test_as_on_a_large_gpu(build: Callable[[Graph], None], gpu: str, as_large: None) -> None:
    """Kernels with barriers, sums in parts, workspace."""
    graph = Graph()
    build(graph)
    assert groups(compiled(graph, gpu))


def sorts(graph: Graph) -> None:
    """Two, of kernels whose loops run as often as data say."""
    for _ in range(2):
        values = graph.ops("TopK", 2, graph.input(3, 40), graph.constant(np.array([9])))
        graph.output(values[0])


@pytest.mark.parametrize("build", [fire, sorts])
def test_barriers_are_kept_apart_on_cpus(
    build: Callable[[Graph], None], gpu: str, as_large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels with barriers are not merged for an OpenCL device that is a CPU."""
    graph = Graph()
    build(graph)
    fuse = parallel_fusion.fuse_parallel

    def on_cpu(mod: Any, spec: Any, target: Any, **options: Any) -> Any:
        return fuse(mod, replace(spec, on_cpu=True), target, **options)

    monkeypatch.setattr(parallel_fusion, "fuse_parallel", on_cpu)
    report = lowered_model(graph.model(), gpu, "none", parallel_fusion=True).report
    refused = [group["reason"] for group in report.fusion_groups if not group["taken"]]
    assert any("barriers" in reason for reason in refused)
    assert not any(group["taken"] for group in report.fusion_groups)


@pytest.mark.parametrize("build", in_full(*MODELS))
def test_as_on_a_small_gpu(build: Callable[[Graph], None], gpu: str, small_gpu: None) -> None:
    graph = Graph()
    build(graph)
    assert groups(compiled(graph, gpu))


@pytest.mark.parametrize("build", [two_networks, *in_full(inception, heads)])
def test_loops_of_a_cpu_by_opencl(build: Callable[[Graph], None], gpu: str) -> None:
    graph = Graph()
    build(graph)
    assert groups(compiled(graph, gpu))


def test_copies_name_vectors_that_they_have_in_common(gpu: str) -> None:
    """Poolings merged into one launch share the divisors by column, a vector on the host."""
    graph = Graph()
    for _ in range(2):
        data = graph.input(1, 2, 5, 17)
        graph.output(graph.op("AveragePool", data, kernel_shape=[3, 3], pads=[1] * 4))
    assert len(groups(compiled(graph, gpu))) == 1


def test_such_devices_have_kernels_without_barriers(gpu: str) -> None:
    """Sorts are not kept apart there: they have the loops of a CPU, a work-item in each group."""
    if not resolve_target(gpu).spec.on_cpu:
        pytest.skip("a GPU of its own")
    graph = Graph()
    sorts(graph)
    assert [len(group) for group in groups(compiled(graph, gpu))] == [2]


def test_parts_of_a_concatenation_are_written_together(gpu: str, as_large: None) -> None:
    """Each names the tensor as the one before has left it, and yet they are independent."""
    graph = Graph()
    squeezed = conv(graph, graph.input(1, 32, 13, 11), 32, 16, 1)
    both = [conv(graph, squeezed, 16, 32, size) for size in (1, 3)]
    graph.output(conv(graph, graph.op("Concat", *both, axis=1), 64, 32))
    model = compiled(graph, gpu)
    convs = [n.name for n in model.report.operators if n.op_type == "Conv"]
    assert together(model, convs[1], convs[2])
    assert not together(model, convs[0], convs[1])
    assert len(groups(model)) == 1


@pytest.mark.parametrize(
    "taken",
    [
        # The first one comes last, and another one allocates; the third is written by itself, into
        # what a later one has left.
        [(1, 6), (2, 4)],
        *in_full([(2, 4)], [(1, 6)], [(3, 5)], [(1, 2, 3, 4)], [(4, 6), (1, 3, 5)]),
    ],
    ids=str,
)
def test_parts_are_written_in_any_order(
    taken: list[tuple[int, ...]], gpu: str, as_large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph()
    data = conv(graph, graph.input(1, 16, 9, 8), 16, 16)
    parts = [conv(graph, data, 16, 4 * n, n) for n in (1, 3, 5, 7)]
    parts.append(conv(graph, conv(graph, data, 16, 12, 1), 12, 16))
    graph.output(conv(graph, graph.op("Concat", *parts, axis=1), 80, 16, 1))

    def chosen(problem: Problem, every: bool) -> list[Group]:
        assert not any(a in problem.before[b] for group in taken for a in group for b in group)
        return [Group(members, True, "chosen here", None, None) for members in taken]

    monkeypatch.setattr("tvm_edge.relay_passes.fuse.parallel_fusion.choose_groups", chosen)
    model = compiled(graph, gpu)
    convs = [node.name for node in model.report.operators if node.op_type == "Conv"]
    assert all(together(model, *(convs[member] for member in members)) for members in taken)
    assert len(model.report.kernels) == 8 - sum(len(members) - 1 for members in taken)


def test_devices_are_not_mixed(gpu: str, as_large: None) -> None:
    """One of three networks is on the CPU, and half of another; its kernels are not merged."""
    graph = Graph()
    for _ in range(3):
        data = conv(graph, graph.input(1, 8, 9, 7), 8, 16)
        graph.output(graph.op("Tanh", conv(graph, data, 16, 8)))
    model = graph.model()
    convs = [node.output[0] for node in model.graph.node if node.op_type == "Conv"]
    beside = [convs[0], convs[1], convs[2]]
    compiled = tvm_edge.compile(model, gpu, fallback=beside, parallel_fusion=True)
    device = {o: k.device for k in compiled.report.kernels for o in k.operators}
    assert {device[name] for name in beside} == {"llvm"} and device[convs[3]] == gpu
    found = groups(compiled)
    assert found
    for group in found:
        assert {device[operator] for operator in group} == {gpu}
    # One waits for the CPU, and one does not.
    assert not together(compiled, convs[3], convs[5])
    for name, expected in reference(model, graph.values).items():
        assert relative_error(compiled.run(graph.values)[name], expected) < 1e-5


def test_who_reads_all_parts_waits_for_each(
    gpu: str, as_large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it names the tensor as the last of them has left it."""
    seen: list[tvm.IRModule] = []

    def kept(mod: tvm.IRModule, *_: Any, **__: Any) -> ParallelFusion:
        seen.append(mod)
        return ParallelFusion(mod)

    monkeypatch.setattr("tvm_edge.compiler.parallel_fusion.fuse_parallel", kept)
    graph = Graph()
    fire(graph)
    lowered_model(graph.model(), gpu, "none", parallel_fusion=True)
    (mod,) = seen
    bindings = list(all_bindings(mod["main"].body))
    before = dependences(mod, bindings, Lives(mod["main"]))
    kernels = [i for i, b in enumerate(bindings) if is_call(b.value, *KERNEL_CALLS)]
    squeeze, left, right, last = kernels[:4]
    assert squeeze in before[left] & before[right]
    assert left not in before[right]
    assert {left, right} <= before[last]


def test_kernels_are_one_launch_in_the_end(gpu: str, as_large: None) -> None:
    """Also those that write parts of one tensor."""
    graph = Graph()
    fire(graph)
    plan = lowered_model(graph.model(), gpu, "none", parallel_fusion=True)
    composed = [
        func
        for func in plan.module.functions.values()
        if isinstance(func, tirx.PrimFunc) and PARALLEL in func.attrs
    ]
    assert composed
    for func in composed:
        lowered = with_merged_launches(func, plan.resolved.target)
        assert merged_launches(lowered)[0] == (0, 1)
        assert len(func.params) == 5  # two images, two times filters; one result


def test_the_best_branches_are_merged_without_being_asked(gpu: str, as_large: None) -> None:
    """Two small kernels on a large GPU; the report says what that is predicted to gain."""
    graph = Graph()
    two_networks(graph)
    model = compiled(graph, gpu, "auto")
    assert groups(model)
    for group in model.report.fusion_groups:
        if group["taken"]:
            assert group["merged_us"] < group["apart_us"]
            assert "predicted" in group["reason"]
    apart = lowered_model(graph.model(), gpu, "none", parallel_fusion=False).report
    assert not apart.fusion_groups and len(apart.kernels) > len(model.report.kernels)


def test_a_cpu_merges_nothing_by_itself() -> None:
    graph = Graph()
    two_networks(graph)
    report = tvm_edge.compile(graph.model(), "llvm").report
    assert report.fusion_groups == ()
    assert not any(kernel.rule.startswith("parallel") for kernel in report.kernels)


def test_a_chain_has_nothing_to_merge(small_model: onnx.ModelProto) -> None:
    report = tvm_edge.compile(small_model, "llvm", parallel_fusion=True).report
    (group,) = report.fusion_groups
    assert not group["taken"] and group["operators"] == []
    assert "no two kernels" in group["reason"]


def test_profile_report_and_artifact(tmp_path: Any) -> None:
    graph = Graph()
    two_networks(graph)
    model = compiled(graph, "llvm")
    rows = model.profile(graph.values, repeat=1).kernels
    assert [row.name for row in rows] == [kernel.name for kernel in model.report.kernels]
    assert "parallel" in model.report.to_dict()["kernels"][0]["rule"]
    loaded = tvm_edge.load(model.export(tmp_path / "two.tvme"))
    assert loaded.report.fusion_groups == model.report.fusion_groups
    for name, value in model.run(graph.values).items():
        assert np.array_equal(loaded.run(graph.values)[name], value)


def test_what_members_write_is_alive_together() -> None:
    """Each of the merged kernel's results has storage of its own."""
    graph = Graph()
    data = [conv(graph, graph.input(1, 16, 16, 16), 16, 16) for _ in range(4)]
    total = graph.op("Sum", *(conv(graph, each, 16, 16, 1) for each in data))
    graph.output(total)
    cpu = {"kind": "llvm", "mcpu": "znver4"}  # other instructions have other kernels to merge
    report = lowered_model(graph.model(), cpu, "none", parallel_fusion=True).report
    assert max(len(group["kernels"]) for group in report.fusion_groups) == 4
    memory = report.memory
    assert memory is not None and memory.over_time[""][0] == 4 * 16**3 * 4


def test_the_same_every_time(gpu: str, as_large: None) -> None:
    graph = Graph()
    inception(graph)
    model = graph.model()
    first, second = (
        lowered_model(model, gpu, "none", parallel_fusion=True).report for _ in range(2)
    )
    assert first.fusion_groups == second.fusion_groups
    assert [k.name for k in first.kernels] == [k.name for k in second.kernels]


def test_decided_without_a_device() -> None:
    graph = Graph()
    two_networks(graph)
    report = tvm_edge.analyze(graph.model(), "jetson-orin-nano")  # "auto" is the default
    assert any(group["taken"] for group in report.fusion_groups)
    apart = tvm_edge.analyze(graph.model(), "jetson-orin-nano", parallel_fusion=False)
    assert not apart.fusion_groups


def test_lengths_that_only_the_run_knows_are_left_alone() -> None:
    nodes = []
    for name in "ab":
        nodes.append(onnx.helper.make_node("NonZero", [name], [f"{name}_at"]))
        nodes.append(onnx.helper.make_node("Cast", [f"{name}_at"], [f"{name}_out"], to=1))
    model = make_model(nodes, {"a": (3, 4), "b": (3, 4)}, ["a_out", "b_out"])
    result = tvm_edge.compile(model, "llvm", parallel_fusion=True)
    for group in result.report.fusion_groups:
        assert not group["taken"]
    values = {"a": np.ones((3, 4), "float32"), "b": np.eye(3, 4, dtype="float32")}
    for name, expected in reference(model, values).items():
        assert np.array_equal(result.run(values)[name], expected)


# ---------------------------------------------------------------------------- random graphs


def random_graph(seed: int, sizes: Sequence[tuple[int, int]]) -> Graph:
    """Images of one size that operators read in any order, some of them concatenated."""
    rng = random.Random(seed)
    graph = Graph(seed)
    height, width = rng.choice(sizes)
    inputs = {graph.input(1, c, height, width): c for c in rng.choice([[4], [8, 12]])}
    channels = dict(inputs)
    for _ in range(rng.randint(5, 9)):
        data = rng.choice(sorted(channels))
        own = channels[data]
        kind = rng.choice(["conv", "conv", "conv", "pool", "unary", "add", "concat", "softmax"])
        if kind == "conv":
            filters = rng.choice([4, 8, 16])
            channels[conv(graph, data, own, filters, rng.choice([1, 3]))] = filters
        elif kind == "pool":
            channels[graph.op("MaxPool", data, kernel_shape=[3, 3], pads=[1] * 4)] = own
        elif kind == "unary":
            channels[graph.op(rng.choice(["Sigmoid", "Tanh"]), data)] = own
        elif kind == "softmax":
            channels[graph.op("Softmax", data, axis=-1)] = own
        elif kind == "add":
            alike = sorted(name for name, count in channels.items() if count == own)
            channels[graph.op("Add", data, rng.choice(alike))] = own
        else:
            parts = [rng.choice(sorted(channels)) for _ in range(rng.randint(2, 3))]
            made = graph.op("Concat", *parts, axis=1)
            channels[made] = sum(channels[part] for part in parts)
    read = {name for node in graph._nodes for name in node.input}
    for name in sorted(channels.keys() - inputs.keys() - read):
        graph.output(name)
    return graph


def assert_random_graphs(target: str, seeds: Iterable[int]) -> None:
    # On a CPU what is worth to be shared by cores.
    sizes = [(40, 40), (32, 52)] if target == "llvm" else [(5, 5), (8, 6)]
    merged = [len(groups(compiled(random_graph(seed, sizes), target))) for seed in seeds]
    assert sum(count > 0 for count in merged) >= len(merged) / 2


@pytest.mark.parametrize("seeds", [range(2), *in_full(range(2, 40))], ids=str)
def test_random_graphs_on_a_cpu(seeds: range) -> None:
    assert_random_graphs("llvm", seeds)


@pytest.mark.parametrize("seeds", [range(100, 102), *in_full(range(102, 140))], ids=str)
def test_random_graphs_on_a_gpu(seeds: range, gpu: str, as_large: None) -> None:
    assert_random_graphs(gpu, seeds)
