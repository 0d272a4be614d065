"""Candidates calculate the convolution, are timed, and a wrong one is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.compiler.steps import lowered as lowered_model
from tests.marks import needs_opencl
from tests.tuning.made import conv, first_config
from tvm_edge.compiler import compilation, driver
from tvm_edge.hardware import resolve_target
from tvm_edge.runtime.candidates import model_candidate
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.tuning.candidates import Shared, build_candidate
from tvm_edge.tuning.conv_problem import TOLERANCE, make_problem
from tvm_edge.tuning.features import features
from tvm_edge.tuning.repeat_convolution import repeat_convolution
from tvm_edge.tuning.tasks import extract_layout_tasks, extract_tasks, legal_configs

LANES = resolve_target("llvm").spec.lanes()

# Channels that are no multiple of a block are filled up.
ON_CPU = {
    "direct": (conv(), "direct", 0),
    "winograd 2": (conv(), "winograd", 2),
    "winograd 4": (conv(), "winograd", 4),
    "33 to 44 channels": (conv(channels=33, filters=44), "direct", 0),
    "33 to 44, winograd": (conv(channels=33, filters=44), "winograd", 4),
    "3 channels, one by one": (conv(channels=3), "direct", 0),
    "1x1 of 3 images": (conv(batch=3, kernel=(1, 1), padding=(0,) * 4), "direct", 0),
    "strides, unequal padding": (conv(strides=(2, 1), padding=(0, 1, 2, 1)), "direct", 0),
    "groups": (conv(channels=32, filters=32, groups=2), "direct", 0),
    "depthwise": (conv(channels=32, filters=32, groups=32), "direct", 0),
}


IN_OTHER_LAYOUTS = {
    "NCHW": (conv(), 0),
    "NCHW, strides": (conv(channels=6, strides=(2, 1), padding=(0, 1, 2, 1)), 0),
    "NCHW, groups": (conv(channels=32, filters=32, groups=2), 0),
    "NCHW, depthwise": (conv(channels=32, filters=32, groups=32), 0),
    "half a register": (conv(channels=40, filters=24), LANES // 2),
    "two registers": (conv(channels=48, filters=64), 2 * LANES),
    "two registers, depthwise": (conv(channels=64, filters=64, groups=64), 2 * LANES),
}


@pytest.mark.parametrize("name", IN_OTHER_LAYOUTS)
def test_on_a_cpu_in_other_layouts(name: str) -> None:
    """Candidates in other layouts, which a graph tuner measures."""
    workload, block = IN_OTHER_LAYOUTS[name]
    tasks = extract_layout_tasks({workload: 1}, resolve_target("llvm"))
    (config, *_) = next(task.configs for task in tasks if task.configs[0].block == block)
    candidate = build_candidate(workload, config, make_problem(workload), "llvm", {})
    assert candidate.error() <= TOLERANCE
    assert candidate.seconds(0.0) > 0


def test_tasks_of_other_layouts_are_not_those_of_the_first() -> None:
    cpu = resolve_target("llvm")
    dense, depthwise = conv(), conv(channels=32, filters=32, groups=32)
    tasks = extract_layout_tasks({dense: 2, depthwise: 3, conv(filters=1): 1}, cpu)
    of_dense = [task.configs[0].block for task in tasks if task.workload == dense]
    assert of_dense[0] == 0 and LANES // 2 in of_dense and LANES not in of_dense
    # A window has no knobs: nothing of it was tuned before.
    assert LANES in [task.configs[0].block for task in tasks if task.workload == depthwise]
    assert {task.workload: task.count for task in tasks} == {dense: 2, depthwise: 3}
    for task in tasks:
        assert len({config.block for config in task.configs}) == 1


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("name", ON_CPU)
def test_on_a_cpu(name: str) -> None:
    workload, algorithm, m = ON_CPU[name]
    problem = make_problem(workload)
    config = first_config(workload, algorithm, m)
    candidate = build_candidate(workload, config, problem, "llvm", {})
    assert candidate.error() <= TOLERANCE
    assert candidate.seconds(0.0) > 0


def test_configurations_of_one_problem_share_filters() -> None:
    """Far ends of a space, each checked after the other has run."""
    workload = conv()
    shared: Shared = {}
    problem = make_problem(workload)
    configs = legal_configs(workload, resolve_target("llvm"))
    direct = [config for config in configs if config.algorithm == "direct"]
    made = [
        build_candidate(workload, config, problem, "llvm", shared)
        for config in (direct[0], direct[-1], direct[len(direct) // 2])
    ]
    for candidate in made:
        assert candidate.error() <= TOLERANCE and candidate.seconds(0.0) > 0
    assert len(shared) == 1


def test_a_wrong_result_is_seen_wherever_it_is() -> None:
    """One filter of the last channel that is filled up, which only its own outputs read."""
    workload: ConvWorkload = conv(channels=33, filters=44)
    right = make_problem(workload)
    filters = right.filters.copy()
    filters[-1, -1] += 1
    wrong = replace(right, filters=filters)
    config = first_config(workload, "direct")
    assert build_candidate(workload, config, wrong, "llvm", {}).error() > 100 * TOLERANCE


@needs_opencl
def test_on_opencl() -> None:
    workload = conv(channels=33, filters=44)
    problem = make_problem(workload)
    config = first_config(workload, "direct", target="opencl")
    candidate = build_candidate(workload, config, problem, "opencl", {})
    assert candidate.error() <= TOLERANCE
    assert candidate.seconds(0.001) > 0
    wrong = replace(problem, expected=np.roll(problem.expected, 1, axis=-1))
    assert build_candidate(workload, config, wrong, "opencl", {}).error() > 100 * TOLERANCE


WITHOUT_LOCAL_MEMORY = {
    "dense": conv(channels=9, filters=20, width=11),
    "depthwise": conv(channels=12, filters=12, groups=12, strides=(2, 2), width=13),
}


@needs_opencl
@pytest.mark.parametrize("name", WITHOUT_LOCAL_MEMORY)
def test_of_a_gpu_without_local_memory(name: str, small_gpu: None) -> None:
    workload = WITHOUT_LOCAL_MEMORY[name]
    problem = make_problem(workload)
    configs = legal_configs(workload, compilation.resolve_target("opencl"))
    config = [config for config in configs if config.algorithm == "items"][-1]
    candidate = build_candidate(workload, config, problem, "opencl", {})
    assert candidate.error() <= TOLERANCE
    assert candidate.seconds(0.001) > 0


@pytest.mark.parametrize("target", ["mali-t860", "jetson-orin-nano", "intel-hd505"])
def test_depthwise_convolutions_are_tasks_of_every_gpu(target: str) -> None:
    workload = conv(groups=16)
    model = repeat_convolution(workload, make_problem(workload), 2)
    (task,) = extract_tasks(model, resolve_target(target))
    assert (task.workload, task.count) == (workload, 2)
    assert sum(config.algorithm == "items" for config in task.configs) >= 50
    # Behind the shape and the ranks, which would tell any two apart.
    rows = features(task)[:, 12:]
    assert np.isfinite(rows).all()
    assert len(np.unique(rows, axis=0)) == len(task.configs)


def test_convolutions_are_timed_inside_the_recorded_graph() -> None:
    """All but the one whose result is an output: launched by the host, others would be timed."""
    workload = conv()
    model = repeat_convolution(workload, make_problem(workload), 5, sampled=True)
    plan = lowered_model(model, "jetson-orin-nano", "none")
    recorded = next(
        func for gvar, func in plan.module.functions_items() if "capture" in gvar.name_hint
    )
    # Of five that which writes an output is the host's.
    assert str(recorded).count("conv2d") == 4
    assert str(plan.module["main"]).count("conv2d") == 1


@needs_opencl
def test_every_copy_is_checked() -> None:
    """A result that is wrong in one of them alone is seen."""
    workload = conv()
    problem = make_problem(workload)
    built = driver.compile_with(
        repeat_convolution(workload, problem, 4, sampled=True), "opencl", {}, fallback="none"
    )
    assert model_candidate(built, problem.image, problem.expected).error() <= TOLERANCE
    run = built.run

    def one_wrong(inputs: Any) -> Any:
        results = run(inputs)
        first, samples = results
        changed = results[samples].copy()
        changed[1] *= 2
        return {first: results[first], samples: changed}

    built.run = one_wrong  # type: ignore[method-assign]
    assert model_candidate(built, problem.image, problem.expected).error() > TOLERANCE
