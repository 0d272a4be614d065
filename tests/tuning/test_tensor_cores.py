"""Tuning on tensor cores: the space, its candidates' code, records of float16, int8 and tf32."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_edge
from tests.compiler.steps import lowered
from tests.records.made import measured
from tests.tuning.int8_networks import PLAIN_MODEL
from tests.tuning.made import conv
from tvm_edge.compiler.build import build
from tvm_edge.errors import InputError
from tvm_edge.hardware import resolve_target
from tvm_edge.records import add_records
from tvm_edge.schedules.conv_records import config_of, config_space, template_of
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.tensor_conv import TensorConv
from tvm_edge.schedules.gpu.tensor_tile import TensorTile, choose_tensor_tile, suits
from tvm_edge.schedules.knobs import read_knobs
from tvm_edge.tuning.candidates import build_candidate
from tvm_edge.tuning.conv_problem import make_problem, tolerance_of
from tvm_edge.tuning.features import features
from tvm_edge.tuning.repeat_convolution import repeat_convolution
from tvm_edge.tuning.tasks import Task, extract_tasks

TARGET = "jetson-orin-nano"
ORIN = resolve_target(TARGET)
TURING = {"kind": "cuda", "arch": "sm_75"}
DTYPES = ("float16", "int8", "tf32")
STORED = {"float16": "float16", "int8": "int8", "tf32": "float32"}


def workload(dtype: str, **sizes: Any) -> ConvWorkload:
    usual = {"channels": 24, "filters": 64, "height": 9, "width": 13}
    return conv(**{**usual, **sizes, "dtype": dtype})


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_space_has_every_legal_tile_the_estimates_first(dtype: str) -> None:
    own = workload(dtype)
    space, geometry = config_space(own, ORIN.spec), TensorConv.of(own, STORED[dtype])
    direct = [config for config in space.configs if config.algorithm == "tensor"]
    others = {config.algorithm for config in space.configs[len(direct) :]}
    assert list(space.configs[: len(direct)]) == direct
    assert others == ({"winograd"} if dtype == "float16" else set())
    tiles = [read_knobs(TensorTile, config.knobs) for config in direct]
    assert len(set(tiles)) == len(tiles) > 50
    assert {tile.cached for tile in tiles} == {0, 1, 2} and max(tile.parts for tile in tiles) > 1
    assert all(suits(tile, geometry, ORIN.spec) for tile in tiles)
    assert tiles[0] == choose_tensor_tile(geometry, ORIN.spec)
    assert not np.isnan(features(Task(own, 1, space.configs))).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_records_round_trip(dtype: str) -> None:
    own = workload(dtype)
    space = config_space(own, ORIN.spec)
    record = measured(own, space.configs[-1], ORIN.spec, "cuda")
    assert record.template == template_of(ORIN.spec, own) == "conv2d.gpu.tensor"
    assert config_of(record, space, ORIN.spec) == space.configs[-1]
    foreign = replace(record, config={**record.config, "rows": 7})
    with pytest.raises(ValueError, match="rows=7"):
        config_of(foreign, space, ORIN.spec)
    pascal = resolve_target({"kind": "cuda", "arch": "sm_61"}).spec
    with pytest.raises(ValueError, match=r"template conv2d\.gpu\.tensor, and .* has conv2d"):
        config_of(record, config_space(own, pascal), pascal)


def network(dtype: str) -> Any:
    """One convolution some times; int8 as in a quantised file."""
    if dtype == "int8":
        return PLAIN_MODEL
    own = replace(workload(dtype), dtype="float32")
    return repeat_convolution(own, make_problem(own), 2)


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("float16", "float16"), ("float16", "mixed"), ("int8", "float32"), ("tf32", "tf32")],
)
def test_a_compilation_takes_a_record(dtype: str, precision: str, tmp_path: Path) -> None:
    model = network(dtype)
    if precision == "mixed":  # of which the float32 kernels of a small convolution are faster
        model = repeat_convolution(LARGE, make_problem(LARGE), 2)
    tasks = extract_tasks(model, ORIN, precision=precision)
    assert tasks and {task.workload.dtype for task in tasks} == {dtype}
    usual = lowered(model, TARGET, precision=precision)
    direct = [[c for c in task.configs if c.algorithm == "tensor"] for task in tasks]
    given = {task.workload: own[len(own) // 2] for task, own in zip(tasks, direct, strict=True)}
    add_records(tmp_path, [measured(w, c, ORIN.spec, "cuda") for w, c in given.items()])
    tuned = lowered(model, TARGET, precision=precision, tuning_logs=tmp_path)
    assert usual.report is not None and tuned.report is not None
    assert tuned.report.records is not None and not tuned.report.records.ignored
    assert tuned.report.records.tuned == sum(task.count for task in tasks)
    origins = [k.origin for k in tuned.report.kernels if "tensor_blocks" in k.rule]
    assert origins and set(origins) == {"tuned"}
    assert {k.origin for k in usual.report.kernels} == {"heuristic"}
    assert tiles_of(tuned) != tiles_of(usual) != []


LARGE = ConvWorkload(1, 128, 28, 28, 128, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1)


def tiles_of(plan: Any) -> list[str]:
    """Tiles and steps of the kernels, as the calls of their templates have them."""
    return re.findall(r"tvm_edge_tensor_conv<[-\d, ]+>", plan.module.script())


@pytest.mark.parametrize("dtype", ["float16", "tf32"])
def test_candidates_are_checked_by_exact_multiples(dtype: str) -> None:
    """A candidate's model of 24 layers is right with ONNX Runtime's arithmetic, not the GPU's."""
    own = workload(dtype)
    problem = make_problem(own)
    assert str(problem.image.dtype) == STORED[dtype]
    assert (problem.image.astype("float16") == problem.image).all()
    model = repeat_convolution(replace(own, dtype="float32"), problem, 24, sampled=True)
    compiled = tvm_edge.compile(model, "llvm", tuning_logs=False)
    whole, samples = compiled.run({"image": -problem.image}).values()
    largest = np.abs(problem.expected).max()
    assert np.isfinite(samples.astype("float32")).all() and len(samples) == 23
    assert np.abs(whole - problem.expected).max() <= tolerance_of(own) * largest
    assert np.abs(samples - largest).max() <= tolerance_of(own) * largest


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(
    ("dtype", "target"),
    [*((dtype, TARGET) for dtype in DTYPES), ("float16", TURING), ("int8", TURING)],
    ids=str,
)
@pytest.mark.diagonals(2)  # each type, and each architecture
def test_candidates_compile(
    dtype: str, target: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A tile of several parts, and one of each way through the L1 cache."""
    own, sources = workload(dtype), []
    resolved = resolve_target(target)
    arch = resolved.target.attrs["arch"]
    built: Callable[..., Any] = build

    def keep(*arguments: Any, **options: Any) -> Any:
        library = built(*arguments, **options)
        sources.extend(library.device_sources())
        return library

    monkeypatch.setattr("tvm_edge.compiler.driver.build", keep)
    configs = config_space(own, resolved.spec).configs
    wanted = [configs[1], next(c for c in configs[2::3] if "parts=2" in c.knobs)]
    for config in wanted:
        build_candidate(own, config, make_problem(own), target, {})
    for number, source in enumerate(sources):
        path = tmp_path / f"{number}.cu"
        path.write_text(source)
        command = ["nvcc", f"-arch={arch}", "-cubin", "--expt-relaxed-constexpr", "-Xptxas", "-O0"]
        done = subprocess.run([*command, "-o", str(tmp_path / "out"), str(path)], check=False)
        assert done.returncode == 0
    assert len(sources) == len(wanted)


@pytest.mark.parametrize(
    ("target", "precision", "said"),
    [
        ("cuda", "bfloat16", "precision='bfloat16' does not exist"),
        ("llvm", "mixed", "leave precision out"),
        ({"kind": "cuda", "arch": "sm_61"}, "mixed", "cannot be tuned on"),
        ("mali-g76", "float16", "cannot be tuned on Arm Mali-G76"),
    ],
    ids=str,
)
def test_what_has_no_records_is_refused(target: Any, precision: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        tvm_edge.tune(PLAIN_MODEL, target, precision=precision)
    options: dict[str, Any] = {"precision": "mixed", "graph": True}
    with pytest.raises(InputError, match="graph=True chooses for float32"):
        tvm_edge.tune(PLAIN_MODEL, "cuda", **options)
