"""Quantised networks on GPUs: what there is to tune, candidates, records, whole runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from tvm import tirx

import tvm_edge
from tests.compiler.steps import lowered as lowered_model
from tests.marks import in_full
from tests.quantized_models import QuantizedGraph, assert_same_numbers
from tests.records.made import measured
from tests.schedules.gpu.harness import MALI, launches
from tests.tuning.int8_networks import PLAIN, PLAIN_MODEL
from tests.tuning.made import conv
from tests.tuning.stand_in import StandIn
from tvm_edge.compiler import compilation
from tvm_edge.compiler import driver as compiler
from tvm_edge.hardware import DeviceSpec, ResolvedTarget, resolve_target
from tvm_edge.records import Database, TuningRecord, add_records, store_of
from tvm_edge.runtime import CompiledModel
from tvm_edge.runtime.candidates import Candidate, Operands, model_candidate
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_records import TEMPLATES, config_of, config_space, template_of
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.dot_products import DOT_PRODUCTS
from tvm_edge.schedules.gpu.conv2d_int8 import int8_tensors
from tvm_edge.schedules.gpu.items import Items
from tvm_edge.schedules.gpu.product import Tile
from tvm_edge.schedules.knobs import read_knobs
from tvm_edge.tuning import candidates, driver, measurer
from tvm_edge.tuning.candidates import build_candidate
from tvm_edge.tuning.conv_problem import TOLERANCE, convolve, convolve_at, make_problem, rounding_of
from tvm_edge.tuning.features import features
from tvm_edge.tuning.pool import Trial
from tvm_edge.tuning.repeat_convolution import repeat_convolution
from tvm_edge.tuning.tasks import Task, extract_layout_tasks, extract_tasks, legal_configs
from tvm_edge.tuning.tunable import convolutions_of
from tvm_edge.tuning.worker import Done, Failed

CPU = resolve_target("llvm")
PASCAL = {"kind": "cuda", "arch": "sm_61"}
"""Instructions for dot products, and no tensor cores, whose kernels have another template."""

PASCAL_SPEC = resolve_target(PASCAL).spec
BYTES = {"dtype": "int8"}
WORKLOADS = {
    "dense": conv(channels=22, filters=24, width=13, **BYTES),
    "depthwise": conv(channels=12, filters=12, groups=12, strides=(2, 2), width=13, **BYTES),
    "strides, unequal padding": conv(strides=(2, 1), padding=(0, 1, 2, 1), **BYTES),
    "pixels of 2 images": conv(batch=2, kernel=(1, 1), padding=(0,) * 4, **BYTES),
    "groups": conv(channels=32, groups=2, dilation=(2, 1), **BYTES),
}


def items_of(config: ConvConfig) -> int:
    """Work-items of a group."""
    if config.algorithm == "items":
        return read_knobs(Items, config.knobs).group.items
    return read_knobs(Tile, config.knobs).items


def spread(workload: ConvWorkload, spec: DeviceSpec) -> ConvConfig:
    """A configuration whose groups are of another size than the heuristic's, and few sums."""
    configs = config_space(workload, spec).configs
    usual = items_of(configs[0])
    return next(config for config in configs[1:] if items_of(config) not in (usual, 1))


def compiled_with(logs: Path | Literal[False], kind: str) -> CompiledModel:
    """The network with these records, each kernel by itself."""
    return tvm_edge.compile(
        PLAIN_MODEL, kind, fallback="none", tuning_logs=logs, parallel_fusion=False
    )


def assert_all_tuned(logs: Path, kind: str) -> None:
    """Each convolution has its record, and the network's numbers are right."""
    compiled = compiled_with(logs, kind)
    info = compiled.report.records
    assert info is not None and (info.convolutions, info.tuned, info.ignored) == (3, 3, ())
    of_bytes = [k for k in compiled.report.kernels if k.rule.endswith("_int8")]
    assert len(of_bytes) == 3 and {k.origin for k in of_bytes} == {"tuned"}
    assert_same_numbers(compiled, PLAIN_MODEL, PLAIN.values)


# ----------------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize("target", [PASCAL, "mali-t860", "mali-g76", "adreno-640"])
def test_convolutions_of_bytes_are_tasks_of_every_gpu(target: str) -> None:
    resolved = resolve_target(target)
    tasks = extract_tasks(PLAIN_MODEL, resolved)
    stored = "uint8" if resolved.spec.dot_product == "qcom_dot" else "int8"
    assert [task.workload.dtype for task in tasks] == [stored] * 3
    assert [task.workload.depthwise for task in tasks] == [False, True, False]
    first = tasks[0].workload
    assert first.padding == (1, 1, 1, 1) and (first.height, first.width) == (14, 13)
    for task in tasks:
        assert len(task.configs) >= 50 and task.count == 1
        rows = features(task)
        assert np.isfinite(rows).all() and (rows[:, -1] == 1).all()
        # Behind the shape and the ranks, which would tell any two apart.
        assert len(np.unique(rows[:, 12:], axis=0)) == len(task.configs)
        # The schedule's own cost model, which the search begins with.
        assert (np.diff(rows[:, 9]) > 0).all()
    assert not extract_layout_tasks({task.workload: 1 for task in tasks}, resolved)


def matrices() -> QuantizedGraph:
    """A dense layer of nine rows, and one of a single row."""
    graph = QuantizedGraph(1)
    for rows in (9, 1):
        numbers = graph.random.integers(-128, 128, (96, 48), "int8")
        scales = graph.random.uniform(1e-3, 2e-3, 48)
        matrix = graph.real(
            graph.constant(numbers, "int8"), scales, np.zeros(48, "int8"), "int8", axis=1
        )
        data = graph.input(rows, 96)
        graph.quantized(graph.op("MatMul", data, matrix), 0.05)
    return graph


def test_products_with_constant_matrices_are_tasks() -> None:
    """Rows are pixels. Of one row sums are shared out, which is no matter of knobs."""
    resolved = resolve_target(PASCAL)
    assert len(convolutions_of(matrices().model(), resolved)) == 2
    (task,) = extract_tasks(matrices().model(), resolved)
    assert (task.workload.width, task.workload.channels, task.workload.filters) == (9, 96, 48)


# ------------------------------------------------------------------------------------- candidates


def ends(configs: tuple[ConvConfig, ...]) -> list[ConvConfig]:
    """The first, and the last of few results a work-item: pocl compiles others for a minute."""
    small = [config for config in configs if not _is_long(config)]
    return [configs[0], small[-1]]


@pytest.mark.parametrize(
    ("size", "name"),
    [
        ("large_gpu", "dense"),
        ("large_gpu", "depthwise"),
        ("small_gpu", "groups"),
        *in_full(*(("large_gpu", name) for name in list(WORKLOADS)[2:])),
        *in_full(*(("small_gpu", name) for name in list(WORKLOADS)[:4])),
    ],
)
def test_candidates_are_exact(
    size: str, name: str, gpu: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(size)
    workload, resolved = WORKLOADS[name], compilation.resolve_target(gpu)
    problem = make_problem(workload, 3)
    assert len(np.unique(problem.expected)) > 100
    for config in ends(legal_configs(workload, resolved)):
        candidate = build_candidate(workload, config, problem, gpu, {})
        assert candidate.error() == 0.0, config
        assert candidate.seconds(0.0) > 0


def test_a_product_that_is_missing_is_seen(gpu: str, large_gpu: None) -> None:
    """One number of one filter; and what the image is padded with."""
    workload = WORKLOADS["dense"]
    right = make_problem(workload)
    config = legal_configs(workload, compilation.resolve_target(gpu))[0]
    sums = convolve(right.image, right.filters, workload, padding=1.0)
    expected = rounding_of(workload).of(sums + right.bias[:, None, None])
    filters = right.filters.copy()
    filters[np.unravel_index(np.abs(filters.astype("int32")).argmax(), filters.shape)] = 0
    for wrong in (replace(right, expected=expected), replace(right, filters=filters)):
        assert build_candidate(workload, config, wrong, gpu, {}).error() > TOLERANCE
    assert build_candidate(workload, config, right, gpu, {}).error() == 0.0


@pytest.mark.skipif(not CPU.spec.dot_product, reason="this CPU has no dot products of 8 bits")
@pytest.mark.parametrize("name", ["dense", "strides, unequal padding"])
def test_the_model_of_a_candidate_is_the_problem(name: str) -> None:
    """By a CPU, in whose type the images may be padded with another number than 0."""
    workload = replace(WORKLOADS[name], dtype=DOT_PRODUCTS[CPU.spec.dot_product].image)
    problem = make_problem(workload)
    model = repeat_convolution(workload, problem, 4, sampled=True)
    built = tvm_edge.compile(model, "llvm", tuning_logs=False)
    assert [k.rule for k in built.report.kernels].count("conv2d_int8") == 4
    assert model_candidate(built, problem.image, problem.expected).error() == 0.0


def test_every_copy_is_checked(gpu: str, large_gpu: None) -> None:
    """A byte that is off by one in one of them alone is seen."""
    workload = WORKLOADS["depthwise"]
    problem = make_problem(workload)
    model = repeat_convolution(workload, problem, 4, sampled=True)
    built = tvm_edge.compile(model, gpu, fallback="none", tuning_logs=False)
    assert model_candidate(built, problem.image, problem.expected).error() == 0.0
    run = built.run

    def one_wrong(inputs: Any) -> Any:
        results = run(inputs)
        first, samples = results
        changed = results[samples].copy()
        changed[1] += 1
        return {first: results[first], samples: changed}

    built.run = one_wrong  # type: ignore[method-assign]
    assert model_candidate(built, problem.image, problem.expected).error() > TOLERANCE


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("workload", [*WORKLOADS.values(), conv(filters=1, channels=1, **BYTES)])
def test_copies_have_filters_of_their_own_and_are_timed_as_in_a_network(
    workload: ConvWorkload,
) -> None:
    """Inside the recorded graph but for the one whose result is an output; a kernel each."""
    model = repeat_convolution(workload, make_problem(workload), 5, sampled=True)
    plan = lowered_model(model, PASCAL, "none")
    shape = [int(dim) for dim in int8_tensors(workload)[1].shape]
    filters = {w.value.numpy().tobytes() for w in plan.weights if list(w.value.shape) == shape}
    assert len(filters) == 5
    recorded = next(
        func for gvar, func in plan.module.functions_items() if "capture" in gvar.name_hint
    )
    assert str(recorded).count("conv2d_int8") == 4
    assert str(plan.module["main"]).count("conv2d_int8") == 1
    rules = [kernel.rule for kernel in plan.report.kernels]
    assert sum(rule.endswith("_int8") or rule == "reduce" for rule in rules) == 5
    # Their images negated, the samples: no other kernel stands between.
    assert len(rules) <= 5 + 3


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_copies_do_not_share_a_launch(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they would where ``compile`` decides: they do not depend on each other."""
    monkeypatch.setattr(compiler, "build", lambda *_, **__: None)  # for a device that is not here
    monkeypatch.setattr(CompiledModel, "build_programs", lambda *_: None)
    target, workload = PASCAL, replace(WORKLOADS["dense"], dtype=dtype)
    config = legal_configs(workload, resolve_target(target))[0]
    made: Any = candidates._model(workload, config, make_problem(workload), target)
    assert [k.rule.split("_")[0] for k in made.report.kernels].count("tiled") == 24
    fused = tvm_edge.analyze(
        repeat_convolution(workload, make_problem(workload), 24, sampled=True), target
    )
    assert any(k.rule.startswith("parallel") for k in fused.kernels)


@pytest.mark.parametrize("name", WORKLOADS)
def test_one_element_of_a_convolution(name: str) -> None:
    workload = WORKLOADS[name]
    problem = make_problem(workload)
    whole = convolve(problem.image, problem.filters, workload, 7.0)
    random = np.random.default_rng(0)
    for _ in range(20):
        place = tuple(int(random.integers(size)) for size in whole.shape)
        assert convolve_at(problem.image, problem.filters, workload, place, 7.0) == whole[place]


# ---------------------------------------------------------------------------------------- records


def groups_of(model: Any, kind: str, logs: Any) -> list[int]:
    """Work-items of a group, by kernel of bytes of a compiled model; of its largest launch."""
    plan = lowered_model(model, kind, "none", tuning_logs=logs)
    kernels = [
        func
        for name, func in sorted((v.name_hint, f) for v, f in plan.lifted.functions_items())
        if isinstance(func, tirx.PrimFunc) and "conv2d_int8" in name
    ]
    return [launches(kernel)[0].items for kernel in kernels]


def records_for(
    configs: Mapping[ConvWorkload, ConvConfig], spec: DeviceSpec, kind: str
) -> list[TuningRecord]:
    return [measured(w, config, spec, kind) for w, config in configs.items()]


def test_records_are_in_the_kernels(gpu: str, large_gpu: None, tmp_path: Path) -> None:
    resolved = compilation.resolve_target(gpu)
    configs = {w: spread(w, resolved.spec) for w in convolutions_of(PLAIN_MODEL, resolved)}
    assert [config.algorithm for config in configs.values()] == ["direct", "items", "direct"]
    add_records(tmp_path, records_for(configs, resolved.spec, gpu))

    assert_all_tuned(tmp_path, gpu)
    wanted = [items_of(config) for config in configs.values()]
    usual = [items_of(config_space(w, resolved.spec).configs[0]) for w in configs]
    assert sorted(groups_of(PLAIN_MODEL, gpu, tmp_path)) == sorted(wanted)
    assert sorted(groups_of(PLAIN_MODEL, gpu, False)) == sorted(usual) != sorted(wanted)
    untuned = compiled_with(False, gpu)
    assert {k.origin for k in untuned.report.kernels} == {"heuristic"}


@pytest.mark.parametrize("number", [1, *in_full(*range(2, 6))])
def test_any_configuration_gives_the_same_bytes(
    number: int, gpu: str, large_gpu: None, tmp_path: Path
) -> None:
    resolved = compilation.resolve_target(gpu)
    random = np.random.default_rng(number)
    configs = {}
    for workload in convolutions_of(PLAIN_MODEL, resolved):
        own = config_space(workload, resolved.spec).configs
        small = [config for config in own if not _is_long(config)]
        configs[workload] = small[int(random.integers(1, len(small)))]
    add_records(tmp_path, records_for(configs, resolved.spec, gpu))
    compiled = compiled_with(tmp_path, gpu)
    assert compiled.report.records is not None and compiled.report.records.tuned == 3
    assert_same_numbers(compiled, PLAIN_MODEL, PLAIN.values)


def test_records_of_another_instruction_are_not_taken(tmp_path: Path) -> None:
    """On a device of the same name, whose driver has another; byte by byte all are alike."""
    target = PASCAL
    resolved = resolve_target(target)
    assert resolved.spec.dot_product == "dp4a"
    without = replace(resolved.spec, dot_product="")
    workloads = list(convolutions_of(PLAIN_MODEL, resolved))
    configs = {w: config_space(w, without).configs[1] for w in workloads}
    add_records(tmp_path, records_for(configs, without, "cuda"))
    plan = lowered_model(PLAIN_MODEL, target, "none", tuning_logs=tmp_path)
    info = plan.report.records
    assert info is not None and (info.convolutions, info.tuned) == (3, 1)
    assert len(info.ignored) == 2
    for reason in info.ignored:
        assert "of the template conv2d_int8.gpu, and" in reason
        assert "has conv2d_int8.gpu.dp4a" in reason
    (depthwise,) = (w for w in workloads if w.depthwise)
    assert (
        template_of(without, depthwise) == template_of(PASCAL_SPEC, depthwise) == "conv2d_int8.gpu"
    )
    dense = workloads[0]
    record = measured(dense, configs[dense], PASCAL_SPEC, "cuda")
    assert config_of(record, config_space(dense, PASCAL_SPEC), PASCAL_SPEC) == configs[dense]
    with pytest.raises(ValueError, match=r"has conv2d_int8\.gpu$"):
        config_of(record, config_space(dense, without), without)


def test_records_of_another_version_or_of_float32_are_not_taken(tmp_path: Path) -> None:
    resolved = resolve_target("mali-t860")
    workload = next(iter(convolutions_of(PLAIN_MODEL, resolved)))
    record = measured(workload, spread(workload, MALI), MALI, "opencl")
    assert record.template == "conv2d_int8.gpu" and record.workload.dtype == "int8,int8,int32"
    outdated = replace(record, template_version=TEMPLATES[record.template] + 1)
    of_float32 = measured(
        replace(workload, dtype="float32"), spread(workload, MALI), MALI, "opencl"
    )
    add_records(tmp_path, [outdated, of_float32])
    plan = lowered_model(PLAIN_MODEL, "mali-t860", "none", tuning_logs=tmp_path)
    info = plan.report.records
    assert info is not None and info.tuned == 0
    (reason,) = info.ignored
    assert "of version 2 of the template conv2d_int8.gpu" in reason


def test_of_another_gpu_only_what_is_plausible_is_taken(tmp_path: Path) -> None:
    target = PASCAL
    resolved = resolve_target(target)
    other = replace(PASCAL_SPEC, key="cuda/another", cores=132)
    workloads = list(convolutions_of(PLAIN_MODEL, resolved))
    configs = {w: config_space(w, PASCAL_SPEC).configs[-1] for w in workloads[:1]}
    configs |= {w: config_space(w, PASCAL_SPEC).configs[3] for w in workloads[1:]}
    add_records(tmp_path, records_for(configs, other, "cuda"))
    plan = lowered_model(PLAIN_MODEL, target, "none", tuning_logs=tmp_path)
    info = plan.report.records
    assert info is not None and (info.tuned, info.transferred) == (0, 2)
    assert len(info.ignored) == 1 and "32 better" in info.ignored[0]


# -------------------------------------------------------------------------------------- whole runs


class Here(StandIn):
    """Candidates are built, compared and timed by the process of the test."""

    def __init__(self, target: Any, *_: Any, **__: Any) -> None:
        self._target = target
        self._built: dict[tuple[ConvWorkload, ConvConfig], Candidate] = {}

    def _answer(self, trial: Trial) -> Done | Failed:
        key = (trial.workload, trial.config)
        if key not in self._built:
            problem = Operands.load(trial.problem)
            candidate = build_candidate(*key, problem, self._target, {})
            error = candidate.error()
            if error > TOLERANCE:
                return Failed("WrongResult", f"{trial.config} is off by {error}")
            self._built[key] = candidate
        return Done((self._built[key].seconds(0.0),))


def test_a_quantised_network_is_tuned(
    gpu: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From nothing: by real processes on a GPU, by this one on pocl compiled for as if it were."""
    if resolve_target(gpu).spec.on_cpu:
        request.getfixturevalue("large_gpu")
        monkeypatch.setattr(driver, "resolve_target", compilation.resolve_target)
        monkeypatch.setattr(measurer, "Pool", type("Own", (Here,), {"tried": []}))
        monkeypatch.setattr(candidates, "_MOST_LAYERS_ELSEWHERE", 3)
        _without_slow_builds(monkeypatch)
    resolved: ResolvedTarget = compilation.resolve_target(gpu)
    result = tvm_edge.tune(PLAIN_MODEL, gpu, trials=9, tuning_logs=tmp_path)
    assert result.trials == 9 and result.failed == 0
    assert len(result.tasks) == 3 and all("int8" in task.name for task in result.tasks)
    assert all(0 < task.best <= task.heuristic < 1 for task in result.tasks)

    with Database(store_of(tmp_path, resolved.spec.key), readonly=True) as database:
        records, damages = database.all()
    assert not damages and len(records) == 9
    assert {record.template for record in records} == {
        template_of(resolved.spec, task.workload) for task in extract_tasks(PLAIN_MODEL, resolved)
    }
    assert {record.config["algorithm"] for record in records} == {"direct", "items"}

    assert_all_tuned(tmp_path, gpu)


def _without_slow_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tiles of a work-item, which are long sources, take pocl half a minute each."""

    def extract(*given: Any) -> list[Task]:
        tasks = extract_tasks(*given)
        return [replace(t, configs=tuple(c for c in t.configs if not _is_long(c))) for t in tasks]

    monkeypatch.setattr(driver, "extract_tasks", extract)


def _is_long(config: ConvConfig) -> bool:
    if config.algorithm == "items":
        return read_knobs(Items, config.knobs).tile.size > 8
    tile = read_knobs(Tile, config.knobs)
    return tile.item_rows * tile.item_columns > 8
