"""Drivers that allow a kernel smaller work-groups than were chosen for it."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_edge
from tests.onnx_models import reference, relative_error
from tests.opencl.support import Shim, Worker, build_shim, worker
from tests.schedules.harness import Graph
from tvm_edge.compiler import compilation, driver
from tvm_edge.compiler.build import build
from tvm_edge.hardware import ResolvedTarget, resolve_target
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.items import Items
from tvm_edge.schedules.knobs import knobs_as_text
from tvm_edge.tuning.conv_problem import make_problem
from tvm_edge.tuning.repeat_convolution import repeat_convolution


@pytest.fixture(scope="module")
def shim(on_opencl: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """An environment whose OpenCL library may be told what to allow."""
    library = build_shim(tmp_path_factory.mktemp("shim"), masked=False)
    real = tvm_edge.opencl.status()["library"]
    return {"TVM_EDGE_OPENCL_LIBRARY": library, "SHIM_REAL": real}


@pytest.fixture(scope="module")
def limited(shim: dict[str, object]) -> Iterator[Worker]:
    """A process in it."""
    with worker(shim) as started:
        yield started


@cache
def graph() -> Graph:
    """Kernels of all kinds: tiles, and what is written for groups, Winograd's transforms and sorts.

    All but the sorts' are of 128 work-items, and those are of more.
    """
    made = Graph()
    rng = np.random.default_rng(0)
    data = made.input(1, 16, 28, 28)
    for channels, outputs in ((16, 64), (64, 64)):
        filters = rng.normal(size=(outputs, channels, 3, 3)) / (9 * channels) ** 0.5
        data = made.op("Relu", made.op("Conv", data, made.constant(filters), pads=[1] * 4))
    rows = made.op("Reshape", data, made.constant(np.int64([4, -1])))
    largest, _ = made.ops("TopK", 2, rows, made.constant(np.int64([50])))
    made.output(data)
    made.output(largest)
    return made


def compile_as_if(**properties: Any) -> None:
    """From now on compile for this machine's device as if it had these properties."""

    def resolve(target: Any, host: Any = None) -> ResolvedTarget:
        resolved = resolve_target(target, host)
        if resolved.spec.kind != "gpu":
            return resolved
        return replace(resolved, spec=replace(resolved.spec, cores=2, **properties))

    compilation.resolve_target = resolve  # type: ignore[assignment]


def compiled(on_cpu: bool) -> tvm_edge.CompiledModel:
    """For this machine's device, as if it were a GPU."""
    compile_as_if(on_cpu=on_cpu, local_memory_kind="dedicated")
    return tvm_edge.compile(graph().model(), "opencl", fallback="none")


def kernels_of_a_gpu() -> tuple[set[str], list[str]]:
    report = compiled(on_cpu=False).report
    return {kernel.rule for kernel in report.kernels}, [kernel.name for kernel in report.kernels]


def exported(path: Path) -> list[str]:
    compiled(on_cpu=False).export(path)
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def artifact(limited: Worker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with its kernels in both sizes."""
    path = tmp_path_factory.mktemp("artifact") / "model.tvme"
    assert "smaller.so" in limited(exported, path)
    return path


def merged() -> tvm_edge.CompiledModel:
    """Two kernels in one launch; in smaller work-groups nothing is merged."""
    compile_as_if(on_cpu=False, local_memory_kind="dedicated")
    return tvm_edge.compile(pair().model(), "opencl", fallback="none", parallel_fusion=True)


@cache
def pair() -> Graph:
    made = Graph()
    for kind in ("Tanh", "Sigmoid"):
        made.output(made.op(kind, made.input(1, 8, 40, 40)))
    return made


def profiled(path: Path, limit: int, load: bool) -> list[tuple[tuple[str, ...], str]]:
    """Operators and origin of what a profile has times of."""
    launched: list[tuple[tuple[str, ...], str]] = []

    def profile(model: tvm_edge.CompiledModel) -> dict[str, np.ndarray]:
        kernels = model.profile(repeat=1).kernels
        launched.extend((kernel.operators, kernel.origin) for kernel in kernels)
        return {}

    if load:
        merged().export(path)
    # The driver builds, and refuses, when a model is compiled or loaded.
    run(lambda: tvm_edge.load(path) if load else merged(), limit, {}, profile)
    return launched


def run_loaded(path: Path, limit: int) -> tuple[dict[str, np.ndarray], list[str]]:
    return run(lambda: tvm_edge.load(path), limit, inputs())


def run_compiled(limit: int) -> tuple[dict[str, np.ndarray], list[str]]:
    return run(lambda: compiled(on_cpu=False), limit, inputs())


def run(
    make: Callable[[], tvm_edge.CompiledModel],
    limit: int,
    values: dict[str, np.ndarray],
    use: Callable[[tvm_edge.CompiledModel], dict[str, np.ndarray]] | None = None,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Outputs where a kernel may have so many work-items, and what was said about it."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger, listener = logging.getLogger("tvm_edge.runtime.model"), Listener()
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    Shim.here()["kernel_items"] = limit
    try:
        return (use or (lambda model: model.run(values)))(make()), said
    finally:
        Shim.here()["kernel_items"] = 0
        logger.removeHandler(listener)


def inputs() -> dict[str, np.ndarray]:
    return dict(graph().values)


def check(outputs: dict[str, np.ndarray]) -> None:
    for name, expected in reference(graph().model(), inputs()).items():
        assert relative_error(outputs[name], expected) < 1e-5


def test_the_model_has_kernels_of_all_kinds(limited: Worker) -> None:
    rules, names = limited(kernels_of_a_gpu)
    assert {"tiled", "winograd_output", "handwritten"} <= rules
    assert {"winograd_input", "top_k"} <= set(names)


@pytest.mark.parametrize("limit, smaller", [(0, False), (64, True)])
def test_an_artifact_carries_both(
    limit: int, smaller: bool, limited: Worker, artifact: Path
) -> None:
    outputs, said = limited(run_loaded, artifact, limit)
    check(outputs)
    assert any("smaller work-groups" in line for line in said) == smaller


def test_a_model_just_compiled_is_built_again(limited: Worker) -> None:
    outputs, said = limited(run_compiled, 64)
    check(outputs)
    assert any("smaller work-groups" in line for line in said)


@pytest.mark.parametrize("load", [True, False], ids=["loaded", "just compiled"])
def test_profiles_are_of_what_runs(load: bool, limited: Worker, tmp_path: Path) -> None:
    path = tmp_path / "pair.tvme"
    (together,) = limited(profiled, path, 0, load)
    apart = limited(profiled, path, 64, load)
    assert apart == [((operator,), "heuristic") for operator in together[0]]


def profiled_alone(path: Path) -> list[tuple[str, ...]]:
    """Operators of what the second of two models launches by itself in smaller work-groups."""
    compile_as_if(on_cpu=False, local_memory_kind="dedicated")
    models = {name: pair().model() for name in ("one", "two")}
    tvm_edge.compile(models, "opencl", fallback="none", parallel_fusion=True).export(path)
    launched: list[tuple[str, ...]] = []

    def profile(model: tvm_edge.CompiledModel) -> dict[str, np.ndarray]:
        kernels = model.profile(models=["two"], repeat=1).kernels
        launched.extend(kernel.operators for kernel in kernels)
        return {}

    _, said = run(lambda: tvm_edge.load(path), 64, {}, profile)
    assert any("smaller work-groups" in line for line in said)
    return launched


def test_so_are_those_of_one_of_several_models(limited: Worker, tmp_path: Path) -> None:
    launched = limited(profiled_alone, tmp_path / "models.tvme")
    assert len(launched) == 2
    assert all(operator.startswith("two/") for (operator,) in launched)


def largest_group(path: Path) -> tuple[int, list[str]]:
    """Work-items that any kernel may have by what the driver says, and how the model runs."""
    _, said = run_loaded(path, 0)
    module = tvm_edge.load(path)._library.module()
    name = next(kernel.name for kernel in tvm_edge.load(path).report.kernels)
    return tvm_edge.opencl.kernel_info(module, f"{name}_kernel")["max_work_group_size"], said


def test_nvidia_runs_more_than_it_says(shim: dict[str, object], artifact: Path) -> None:
    with worker({**shim, "SHIM_SET": "nvidia_items=64"}) as started:
        items, said = started(largest_group, artifact)
        outputs, _ = started(run_loaded, artifact, 0)
    assert items == 64 and not said
    check(outputs)


def builds(limit: int) -> int:
    """Count the code generations until a model has run."""
    count = 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        return build(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "build", counted)
        run_compiled(limit)
    return count


@pytest.mark.parametrize("limit, times", [(0, 1), (64, 2)])
def test_it_is_built_when_it_is_needed(limit: int, times: int, limited: Worker) -> None:
    assert limited(builds, limit) == times


def run_items(groups: int) -> tuple[float, list[str]]:
    """The error of a convolution in measured work-groups of 128 where 64 are allowed."""
    compile_as_if(on_cpu=False, local_memory_kind="global", registers=0)
    workload = ConvWorkload(1, 16, 28, 28, 16, (3, 3), (1, 1), (1,) * 4, (1, 1), groups)
    config = ConvConfig("items", knobs=knobs_as_text(Items(1, 2, 2, 8, 8, 2)))
    problem = make_problem(workload)
    model = repeat_convolution(workload, problem, 1)

    def make() -> tvm_edge.CompiledModel:
        return driver.compile_with(model, "opencl", {workload: config}, fallback="none")

    outputs, said = run(make, 64, {"image": problem.image})
    (output,) = outputs.values()
    return relative_error(output, problem.expected), said


@pytest.mark.parametrize("groups", [1, 16], ids=["dense", "depthwise"])
def test_measured_work_groups_become_smaller_too(groups: int, limited: Worker) -> None:
    error, said = limited(run_items, groups)
    assert error < 1e-5
    assert any("smaller work-groups" in line for line in said)


def test_what_even_smaller_groups_need_is_refused_by_the_driver(
    limited: Worker, artifact: Path
) -> None:
    """An error with the kernel, its group and the limit, and no crash."""
    with pytest.raises(Exception, match=r"refuses kernel .* may have 2, the device allows"):
        limited(run_loaded, artifact, 2)


def export_of_a_cpu(path: Path) -> list[str]:
    compiled(on_cpu=True).export(path)
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_cpus_have_groups_of_one(limited: Worker, tmp_path: Path) -> None:
    assert "smaller.so" not in limited(export_of_a_cpu, tmp_path / "model.tvme")
