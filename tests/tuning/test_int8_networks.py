"""Quantised networks are tuned and compiled with what was found; layouts are chosen around them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm_ffi
from tvm import relax, tirx

import tvm_edge
from tests.compiler.steps import simplified
from tests.marks import in_full
from tests.quantized_models import assert_same_numbers
from tests.records.made import measured
from tests.tuning.int8_networks import MIXED_MODEL, PLAIN, PLAIN_MODEL, check_mixed
from tests.tuning.layout_networks import mixed_layouts
from tests.tuning.made import records_of
from tests.tuning.stand_in import StandIn
from tvm_edge.compiler.driver import compile_with, unmerged_kernels
from tvm_edge.frontend import load_model
from tvm_edge.hardware import resolve_target
from tvm_edge.records import add_records
from tvm_edge.relay_passes.ir.expressions import kernel_calls
from tvm_edge.relay_passes.layout.block_layout import BlockLayout
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_records import TEMPLATES, config_of, config_space
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.int8 import BLOCK
from tvm_edge.schedules.knobs import knobs_as_dict
from tvm_edge.tuning import graph_tuner, measurer
from tvm_edge.tuning.graph_tuner import GraphTuner
from tvm_edge.tuning.layout_costs import plan_of, transform_kinds
from tvm_edge.tuning.transform_times import TransformTimes, estimate_transforms
from tvm_edge.tuning.tunable import convolutions_of, layout_graph_of

CPU = resolve_target("llvm")

pytestmark = pytest.mark.skipif(
    not CPU.spec.dot_product, reason="this CPU has no dot products of 8 bits"
)


def spread(workload: ConvWorkload) -> ConvConfig:
    """A configuration whose tile the heuristic does not choose: five pixels, two of a window."""
    configs = config_space(workload, CPU.spec).configs
    columns = {config: knobs_as_dict(config.knobs)["columns"] for config in configs}
    own = 2 if workload.depthwise else 5
    assert columns[configs[0]] != own
    return next(config for config in configs[1:] if columns[config] == own)


def unrolled(func: tirx.PrimFunc) -> set[int]:
    """Extents of unrolled loops."""
    found: set[int] = set()

    def visit(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.UNROLLED:
            found.add(int(loop.extent))

    tvm_ffi.structural_walk(func.body, (tirx.For, visit))
    return found


def test_records_are_in_the_kernels(tmp_path: Path) -> None:
    workloads = convolutions_of(PLAIN_MODEL, CPU)
    assert [(w.is_bytes, w.depthwise) for w in workloads] == [
        (True, False),
        (True, True),
        (True, False),
    ]
    first = next(iter(workloads))
    assert first.padding == (1, 1, 1, 1) and (first.height, first.width) == (14, 13)
    made = [measured(w, spread(w), CPU.spec, "llvm") for w in workloads]
    # The same convolutions in float32 are other ones.
    others = (replace(w, dtype="float32") for w in workloads)
    made += [measured(w, config_space(w, CPU.spec).configs[1], CPU.spec, "llvm") for w in others]
    assert len({record.workload.digest for record in made}) == 6
    add_records(tmp_path, made)

    compiled = tvm_edge.compile(PLAIN_MODEL, "llvm", tuning_logs=tmp_path)
    info = compiled.report.records
    assert info is not None and (info.convolutions, info.tuned, info.ignored) == (3, 3, ())
    of_bytes = [k for k in compiled.report.kernels if k.rule.endswith("_int8")]
    assert len(of_bytes) == 3 and {k.origin for k in of_bytes} == {"tuned"}
    tuned, plain = (
        {v.name_hint: unrolled(f) for v, f in functions.items() if "_int8" in v.name_hint}
        for functions in (
            dict(unmerged_kernels(PLAIN_MODEL, "llvm", tuning_logs=logs)[0].functions_items())
            for logs in (tmp_path, False)
        )
    )
    assert len(tuned) == 3 and tuned.keys() == plain.keys()
    assert all(tuned[name] != plain[name] for name in tuned)
    assert sum(5 in extents for extents in tuned.values()) == 2
    assert_same_numbers(compiled, PLAIN_MODEL, PLAIN.values)


def test_records_of_another_version_are_not_taken(tmp_path: Path) -> None:
    workload = next(iter(convolutions_of(PLAIN_MODEL, CPU)))
    record = measured(workload, spread(workload), CPU.spec, "llvm")
    add_records(tmp_path, [replace(record, template_version=record.template_version + 1)])
    report = tvm_edge.compile(PLAIN_MODEL, "llvm", tuning_logs=tmp_path).report
    assert report.records is not None and report.records.tuned == 0
    assert len(report.records.ignored) == 1 and "conv2d_int8.cpu" in report.records.ignored[0]
    of_float32 = replace(record, template="conv2d.cpu", template_version=TEMPLATES["conv2d.cpu"])
    with pytest.raises(ValueError, match=r"has conv2d_int8\.cpu"):
        config_of(of_float32, config_space(workload, CPU.spec), CPU.spec)


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_quantised_network_is_tuned(
    real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not real:
        monkeypatch.setattr(measurer, "Pool", type("Own", (StandIn,), {"tried": []}))
    result = tvm_edge.tune(PLAIN_MODEL, "llvm", trials=9, tuning_logs=tmp_path, graph=True)
    assert result.trials == 9 and result.failed == 0
    assert all(task.workload.is_bytes and task.best < np.inf for task in result.tasks)
    assert len(result.tasks) == 3 and all("int8" in task.name for task in result.tasks)
    records = records_of(tmp_path)
    assert {record.template for record in records} == {"conv2d_int8.cpu"}
    assert all(record.workload.dtype.endswith("int8,int8,int32") for record in records)
    assert result.graph is None
    assert "3 convolutions of bytes" in result.summary() and "blocks of 16" in result.summary()
    if real:
        compiled = tvm_edge.compile(PLAIN_MODEL, "llvm", tuning_logs=tmp_path)
        assert compiled.report.records is not None and compiled.report.records.tuned == 3
        assert_same_numbers(compiled, PLAIN_MODEL, PLAIN.values)


# ------------------------------------------------------------------------------- layouts


def test_convolutions_of_bytes_have_one_layout() -> None:
    found, _ = layout_graph_of(MIXED_MODEL, CPU)
    assert len(found.fixed) == 3 and len(found.convolutions) == 3
    assert all(found.nodes[number].layouts == (BLOCK,) for number in found.fixed)
    first = found.nodes[min(found.fixed)]
    assert set(first.reads[0].layouts) == {4}, "few channels"
    assert not any("nn.pad" in node.what for node in found.nodes), "they pad for themselves"
    # What follows their sums in the same kernel has no other layout either.
    quantised = [node for node in found.nodes if node.what.startswith("tvm_edge.quantize ")]
    assert (BLOCK,) in [node.layouts for node in quantised]
    own = [w.is_bytes for w in convolutions_of(MIXED_MODEL, CPU)]
    assert own.count(True) == 3 and own.count(False) == 2, "two are alike"


@pytest.mark.parametrize("seed", [0, *in_full(1, 2, 3)])
def test_any_choice_around_them_is_compiled_as_it_says(seed: int, tmp_path: Path) -> None:
    found, problem, layouts, plan = mixed_layouts(MIXED_MODEL, seed, tmp_path)
    assert found.fits(layouts)
    simple = simplified(load_model(MIXED_MODEL).module, CPU)
    blocked = relax.transform.DeadCodeElimination()(BlockLayout(CPU.spec, None, plan)(simple))
    called = Counter(name.rstrip("0123456789") for name in kernel_calls(blocked))
    expected = Counter(
        "pack" if not t.before else "repack" if t.after else "unpack"
        for t in problem.needed(layouts)
    )
    assert {name: called[name] for name in expected} == expected
    compiled = compile_with(MIXED_MODEL, "llvm", {}, layout_plan=plan)
    assert [k.rule for k in compiled.report.kernels].count("conv2d_int8") == 2
    assert {compiled.report.layouts[name] for name in ("first", "window", "last")} == {"NCHW16c"}
    check_mixed(compiled)


def estimated(tuner: GraphTuner) -> TransformTimes:
    return estimate_transforms(transform_kinds(tuner.graph), CPU.spec)


@pytest.mark.full
def test_layouts_of_a_mixed_network_are_kept_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurer, "Pool", type("Own", (StandIn,), {"tried": []}))
    # Whatever this machine says of them, they are faster.
    monkeypatch.setattr(GraphTuner, "compiled", lambda *_: None)
    monkeypatch.setattr(GraphTuner, "_times", estimated)
    monkeypatch.setattr(graph_tuner, "timed_in_turns", lambda models, _: [2e-3, 1e-3, 1e-3])
    workloads = [w for w in convolutions_of(MIXED_MODEL, CPU) if w.is_bytes]
    add_records(tmp_path, [measured(w, spread(w), CPU.spec, "llvm") for w in workloads])
    result = tvm_edge.tune(MIXED_MODEL, "llvm", trials=9, tuning_logs=tmp_path, graph=True)
    assert result.graph is not None and result.graph.taken and not result.graph_note
    assert result.graph.info.fixed == {"NCHW16c": 3}
    assert "around 3 NCHW16c of bytes" in result.summary()
    compiled = tvm_edge.compile(MIXED_MODEL, "llvm", tuning_logs=tmp_path)
    choice = compiled.report.layout_choice
    assert choice is not None and choice.fixed == {"NCHW16c": 3}
    assert sum(choice.convolutions.values()) == 3
    of_bytes = [k for k in compiled.report.kernels if k.rule.endswith("_int8")]
    assert len(of_bytes) == 3 and {k.origin for k in of_bytes} == {"tuned"}
    check_mixed(compiled)


def test_on_a_narrower_cpu_blocks_of_bytes_are_kept(tmp_path: Path) -> None:
    """Whose float32 has no blocks of 16 channels."""
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "+dotprod"]}
    arm = resolve_target(target)
    assert arm.spec.dot_product == "sdot" and arm.spec.lanes() == 4
    tuner = GraphTuner(MIXED_MODEL, target, arm, None, tmp_path, on_board=True)
    options, problem = tuner.problem()
    layouts = problem.solve().layouts
    assert tuner.graph.fits(layouts)
    summed = next(n for n in tuner.graph.nodes if "add" in n.what and len(n.reads) == 2)
    assert BLOCK in summed.layouts
    plan = plan_of(tuner.graph, layouts, options)
    assert all(plan.layouts[number] == BLOCK for number in tuner.graph.fixed)


def test_a_model_of_onnx_is_taken_from_a_file(tmp_path: Path) -> None:
    onnx.save(PLAIN_MODEL, tmp_path / "model.onnx")
    found = convolutions_of(str(tmp_path / "model.onnx"), CPU)
    assert len(found) == 3 and all(workload.is_bytes for workload in found)
