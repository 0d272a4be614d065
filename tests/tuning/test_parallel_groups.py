"""``tune`` measures independent kernels as one, and ``"auto"`` goes by what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from tvm import tirx

import tvm_edge
from tests.marks import in_full
from tests.onnx_models import reference, relative_error
from tests.relay_passes.fusion_groups import shared_and_in_place, two_networks
from tests.schedules.harness import Graph
from tvm_edge import InputError
from tvm_edge.compiler.driver import unmerged_kernels
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.records import RecordDevice, RecordLibrary
from tvm_edge.relay_passes.fuse.kernel_graph import KernelGraph
from tvm_edge.relay_passes.fuse.parallel_fusion import merged_kernels
from tvm_edge.relay_passes.ir.aliases import Lives
from tvm_edge.schedules.parallel_records import group_config, group_template, group_workload
from tvm_edge.tuning.group_problem import GroupProblem, group_problem
from tvm_edge.tuning.group_worker import (
    GROUP_LIMITS,
    largest_error,
    measure_variants,
    start_worker,
)
from tvm_edge.tuning.parallel_groups import GroupTuner
from tvm_edge.tuning.recorder import Recorder
from tvm_edge.tuning.result import TuneResult
from tvm_edge.tuning.worker import Failed, Worker

QUICK = replace(GROUP_LIMITS, rounds=2, seconds=0.001)


def built(build: Callable[[Graph], None]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    graph = Graph()
    build(graph)
    return graph.model(), graph.values


def tuned(model: onnx.ModelProto, target: str, folder: Path, most: int) -> GroupTuner:
    resolved = resolve_target(target)
    tuner = GroupTuner(
        model, target, None, None, Recorder(resolved, folder), folder, resolved.kind, most
    )
    tuner.limits = QUICK
    tuner()
    return tuner


@pytest.mark.parametrize(
    ("target", "build"),
    [
        ("opencl", two_networks),
        *in_full(("llvm", shared_and_in_place), ("llvm", two_networks)),
    ],
)
def test_auto_takes_what_gained(
    target: str, build: Callable[[Graph], None], tmp_path: Path
) -> None:
    if target != "llvm" and not tvm.device(target, 0).exist:
        pytest.skip(f"no {target} device on this machine")
    model, values = built(build)
    before = tvm_edge.compile(model, target, parallel_fusion="auto", tuning_logs=tmp_path)
    assert not any(group["taken"] for group in before.report.fusion_groups)
    results = tuned(model, target, tmp_path, 2).results
    assert results and len(results) <= 2
    for result in results:
        assert result.error == "" and result.apart and result.merged
        assert len(result.kernels) > 1

    after = tvm_edge.compile(model, target, parallel_fusion="auto", tuning_logs=tmp_path)
    reasons = [group["reason"] for group in after.report.fusion_groups if group["taken"]]
    assert set(reasons) <= {"measured to gain"}
    assert bool(reasons) == any(result.gains for result in results)
    found = after.run(values)
    for name, expected in reference(model, values).items():
        assert relative_error(found[name], expected) < 1e-5


def test_a_model_that_leaves_the_device_has_no_groups_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, _ = built(two_networks)
    recorder = Recorder(resolve_target("llvm"), tmp_path)
    tuner = GroupTuner(model, "llvm", None, None, recorder, tmp_path, "opencl")
    tuner()
    assert tuner.results == []
    assert "left to the CPU beside the opencl device" in caplog.text
    assert "target 'llvm'" in caplog.text


@pytest.mark.full
def test_records_of_both_orders(tmp_path: Path) -> None:
    """Merged and not, of each; they are not measured again."""
    model, _ = built(two_networks)
    (result,) = tuned(model, "llvm", tmp_path, 1).results
    mod, resolved = unmerged_kernels(model, "llvm", tuning_logs=tmp_path)
    graph = graph_of(mod)
    names = [str(kernel.name.name_hint) for kernel in graph.kernels]
    first, second = (names.index(name) for name in result.kernels)
    with RecordLibrary(RecordDevice.of(resolved.spec), tmp_path) as library:
        for order in ((first, second), (second, first)):
            launches = graph.launches(order)
            assert launches is not None
            records = [f.record for f in library.candidates(group_workload(launches), "llvm")]
            assert {r.template for r in records} == {group_template(resolved.spec)}
            configs = [r.config for r in records]
            assert len(configs) == 2 and all(group_config(m) in configs for m in (False, True))
            assert all(r.latencies and not r.error for r in records)
    again = tuned(model, "llvm", tmp_path, 1).results
    assert [each.kernels for each in again] != [result.kernels]


def graph_of(mod: tvm.IRModule) -> KernelGraph:
    (block,) = mod["main"].body.blocks
    return KernelGraph(mod, list(block.bindings), Lives(mod["main"]))


def some_group() -> tuple[GroupProblem, DeviceSpec]:
    model, _ = built(two_networks)
    mod, resolved = unmerged_kernels(model, "llvm")
    graph = graph_of(mod)
    kernels = [graph.kernels[0], graph.kernels[len(graph.kernels) // 2]]
    return group_problem(mod, kernels), resolved.spec


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = start_worker("llvm", None, 1)
    yield made
    made.stop()


def broken(problem: GroupProblem, change: Callable[[Any], Any]) -> tvm.IRModule:
    """The module of a group, one of whose kernels stores what `change` makes of its values."""
    mod = problem.module.clone()
    name = next(gvar for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc))
    func = mod[name]

    def stored(store: tirx.BufferStore) -> tirx.BufferStore:
        return tirx.BufferStore(store.buffer, change(store.value), store.indices)

    body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, stored))
    assert not tvm_ffi.structural_equal(body, func.body)
    mod[name] = tirx.PrimFunc(list(func.params), body).with_attrs(func.attrs)
    return mod


def calls(function: str) -> Callable[[Any], Any]:
    """Return a call of a function of C's library."""
    return lambda value: value + tirx.call_extern("float32", function)


@pytest.mark.full
@pytest.mark.parametrize("dead", [False, True])
def test_variants_that_fail(worker: Worker, dead: bool) -> None:
    """One answers wrongly, one ends its process; the others are measured all the same."""
    problem, spec = some_group()
    variants = {
        "apart": problem.module,
        **({"dead": broken(problem, calls("abort"))} if dead else {}),
        "wrong": broken(problem, lambda value: value * tirx.const(1.001, "float32")),
        "0_1": merged_kernels(problem.module, spec, [(0, 1)]),
    }
    first = worker.process.pid
    found = measure_variants(worker, variants, problem.areas, QUICK)
    assert worker.process.pid != first
    errors = {name: each.error for name, each in found.items() if isinstance(each, Failed)}
    assert errors == {"wrong": "WrongResult", **({"dead": "DeviceLost"} if dead else {})}
    for name in ("apart", "0_1"):
        latencies = found[name]
        assert not isinstance(latencies, Failed)
        assert len(latencies) == QUICK.rounds and min(latencies) > 0


@pytest.mark.full
def test_a_variant_that_never_ends(worker: Worker) -> None:
    problem, _ = some_group()
    variants = {"apart": problem.module, "bad": broken(problem, calls("pause"))}
    limits = replace(QUICK, build=20)
    found = measure_variants(worker, variants, problem.areas, limits)
    bad = found["bad"]
    assert isinstance(bad, Failed) and bad.error == "MeasureTimeout"
    assert not isinstance(found["apart"], Failed)


@pytest.mark.full
def test_when_nothing_can_be_measured(worker: Worker) -> None:
    problem, _ = some_group()
    bad = broken(problem, calls("abort"))
    found = measure_variants(worker, {"apart": bad, "0_1": problem.module}, problem.areas, QUICK)
    assert all(isinstance(each, Failed) for each in found.values())


@pytest.mark.full
def test_a_group_after_one_that_failed(worker: Worker) -> None:
    """It is compared with itself, not with what the process built before."""
    problem, _ = some_group()
    unknown = tirx.call_intrin("float32", "tirx.tvm_warp_activemask")  # of GPUs alone
    missing = broken(problem, lambda value: value + unknown)
    found = measure_variants(
        worker, {"apart": missing, "0_1": problem.module}, problem.areas, QUICK
    )
    assert all(isinstance(each, Failed) and not each.ran for each in found.values())
    other = broken(problem, lambda value: value * tirx.const(1.5, "float32"))
    (latencies,) = measure_variants(worker, {"apart": other}, problem.areas, QUICK).values()
    assert not isinstance(latencies, Failed)


def test_errors_of_results() -> None:
    one = np.array([[1.0, 2.0], [3.0, -4.0]], "float32")
    whole = number = np.array([3, 4])
    assert largest_error([one, number], [one, whole], [None, None]) == 0
    off = one + np.float32(0.04)
    assert largest_error([off], [one], [None]) == pytest.approx(0.01, rel=1e-3)
    assert largest_error([number + 1], [whole], [None]) == float("inf")
    broken = one.copy()
    broken[0, 1] = np.nan
    assert largest_error([broken], [one], [None]) == float("inf")
    assert largest_error([one], [broken], [None]) == float("inf")
    assert largest_error([broken], [broken], [None]) == 0
    assert largest_error([broken], [one], [(0, 1)]) == 0, "a part that nobody writes"
    assert largest_error([broken], [one], [(1, 1)]) == float("inf")


def test_a_network_without_groups(small_model: onnx.ModelProto, tmp_path: Path) -> None:
    """A chain: nothing is measured, and no process is started."""
    assert tuned(small_model, "llvm", tmp_path, 2).results == []
    chain = TuneResult("chain", "a CPU", (), 0, 0, 0.0, tmp_path, False, {}, groups=())
    assert "no groups of kernels" in chain.summary()
    assert "groups of kernels" not in replace(chain, groups=None).summary()


@pytest.mark.full
def test_tune(tmp_path: Path) -> None:
    """By the public function, of two models at once."""
    model, _ = built(two_networks)
    result = tvm_edge.tune(
        {"a": model, "b": model},
        "llvm",
        trials=1,
        tuning_logs=tmp_path,
        parallel_fusion=True,
        time_budget=6.0,
    )
    assert result.model == "a + b"
    assert result.groups and "groups of kernels" in result.summary()
    rows = result.to_dict()["groups"]
    assert [row["gains"] for row in rows] == [group.gains for group in result.groups]


@pytest.mark.parametrize(
    ("options", "name"),
    [({"parallel_fusion": 1}, "parallel_fusion"), ({"parallel_fusion": "auto"}, "parallel_fusion")],
)
def test_what_means_nothing(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InputError) as caught:
        tvm_edge.tune("/no/such/model.onnx", "llvm", **options)
    assert caught.value.name == name


def test_boards_are_refused() -> None:
    with pytest.raises(InputError, match="on a device of this machine"):
        tvm_edge.tune("/no/such/model.onnx", "llvm", parallel_fusion=True, tracker="localhost:1")
