"""Layouts that were chosen for networks: kept, found again, and ignored where they do not hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import tvm_edge
from tests.tuning.layout_networks import CPU, SMALL, SMALL_MODEL, check_outputs, network
from tvm_edge.records import (
    LAYOUTS,
    LayoutRecord,
    LayoutTransform,
    read_layouts,
    store_of,
    stores_below,
    update_layouts,
)
from tvm_edge.report import LayoutsInfo
from tvm_edge.schedules.conv_records import recorded_config
from tvm_edge.tuning import GraphResult, graph_tuner
from tvm_edge.tuning.graph_tuner import GraphTuner, uniform
from tvm_edge.tuning.layout_costs import layout_problem, transform_kinds, ways
from tvm_edge.tuning.transform_times import estimate_transforms
from tvm_edge.tuning.tunable import layout_graph_of


def tune_small(folder: Path, patch: pytest.MonkeyPatch, *, faster: bool) -> GraphResult:
    """Choose layouts of the small network, of estimates; whether they are faster is given."""

    def timed(models: list[object], _check: object) -> list[float]:
        seconds = [1.0 + number for number in range(len(models))]
        return seconds[::-1] if faster else seconds

    patch.setattr(graph_tuner, "timed_in_turns", timed)
    patch.setattr(GraphTuner, "compiled", lambda *_: None)
    # This machine may have other work: what is chosen must not depend on it.
    patch.setattr(
        graph_tuner, "measure_transforms", lambda kinds, *_: estimate_transforms(kinds, CPU.spec)
    )
    return GraphTuner(SMALL_MODEL, "llvm", CPU, None, folder)("small")


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> LayoutRecord:
    folder = tmp_path_factory.mktemp("chosen")
    with pytest.MonkeyPatch.context() as patch:
        result = tune_small(folder, patch, faster=True)
    assert result.taken and (result.convolutions, result.measured) == (2, 0)
    assert set(result.info.convolutions) != {"NCHW"}, "blocks pay"
    (record,), damages = read_layouts(store_of(folder, CPU.spec.key, LAYOUTS))
    assert not damages and LayoutRecord.from_json(record.to_json()) == record
    return record


def keep(folder: Path, record: LayoutRecord, **fields: object) -> None:
    """Write one record of layouts, with other `fields`."""
    made = replace(record, **fields)  # type: ignore[arg-type]
    update_layouts(folder, CPU.spec.key, lambda _: [made])


def choice_of(folder: Path | bool, model: onnx.ModelProto = SMALL_MODEL) -> LayoutsInfo | None:
    return tvm_edge.analyze(model, "llvm", tuning_logs=folder).layout_choice


def test_what_was_chosen_is_found_again(chosen: LayoutRecord, tmp_path: Path) -> None:
    keep(tmp_path, chosen)
    compiled = tvm_edge.compile(SMALL_MODEL, "llvm", tuning_logs=tmp_path)
    check_outputs(compiled, SMALL, SMALL_MODEL)
    info = compiled.report.layout_choice
    assert info is not None and sum(info.convolutions.values()) == 2
    assert info.predicted >= info.bound > 0
    said = compiled.report.summary()
    assert f"predicted {1e3 * info.predicted:.3g} ms" in said and info.transforms
    assert all(transform.line() in said for transform in info.transforms)
    layouts = {name.split(",")[0] for name in compiled.report.layouts.values()}
    assert layouts | {"NCHW"} == set(info.convolutions) | {"NCHW"}
    back = type(compiled.report).from_dict(compiled.report.to_dict())
    assert back.layout_choice == info == choice_of(tmp_path)


def test_what_was_chosen_is_of_one_network_and_folder(chosen: LayoutRecord, tmp_path: Path) -> None:
    keep(tmp_path / "here", chosen)
    (tmp_path / "elsewhere").mkdir()
    assert choice_of(tmp_path / "here") is not None
    assert choice_of(tmp_path / "elsewhere") is None and choice_of(False) is None
    assert choice_of(tmp_path / "here", network().model()) is None
    assert stores_below(tmp_path) == [], "layouts are no records of kernels"


def test_the_plan_that_is_kept_is_what_is_compiled(chosen: LayoutRecord, tmp_path: Path) -> None:
    """Not what the estimates would choose: both convolutions in blocks of two registers."""
    found, _ = layout_graph_of(SMALL_MODEL, CPU)
    options, _ = ways(found.convolutions.values(), CPU, tmp_path)
    times = estimate_transforms(transform_kinds(found), CPU.spec)
    block = 2 * CPU.spec.lanes()
    layouts = uniform(layout_problem(found, options, times), found, block).layouts
    configs = {
        str(number): recorded_config(options[workload][block].config)
        for number, workload in found.convolutions.items()
    }
    keep(tmp_path, chosen, layouts=layouts, configs=configs, transforms=())
    shown = tvm_edge.analyze(SMALL_MODEL, "llvm", tuning_logs=tmp_path).layouts
    assert {name.split(",")[0] for name in shown.values()} == {f"NCHW{block}c"}
    assert len(shown) == 2


def test_records_that_do_not_hold_are_ignored(chosen: LayoutRecord, tmp_path: Path) -> None:
    for fields, reason in (
        ({"template_version": 999}, "of version 999 of the template"),
        ({"layouts": (7,) * len(chosen.layouts)}, "do not go together"),
        ({"layouts": (0,)}, "do not go together"),
        ({"configs": {}}, "has no configuration"),
    ):
        bare = replace(chosen, configs={}, transforms=())
        keep(tmp_path, bare if "layouts" in fields else chosen, **fields)
        report = tvm_edge.analyze(SMALL_MODEL, "llvm", tuning_logs=tmp_path)
        assert report.layout_choice is None
        assert report.records is not None and reason in report.records.ignored[-1]
        assert "--graph" in report.records.ignored[-1]
    keep(tmp_path, chosen, target={"kind": "llvm", "cores": 999})
    report = tvm_edge.analyze(SMALL_MODEL, "llvm", tuning_logs=tmp_path)
    assert report.layout_choice is None and report.records is not None
    assert not report.records.ignored, "another number of cores is another device"


def test_a_damaged_line_costs_itself(chosen: LayoutRecord, tmp_path: Path) -> None:
    keep(tmp_path, chosen)
    path = store_of(tmp_path, CPU.spec.key, LAYOUTS)
    whole = path.read_text()
    path.write_text(f"{whole[:50]}\n{whole}")
    report = tvm_edge.analyze(SMALL_MODEL, "llvm", tuning_logs=tmp_path)
    assert report.layout_choice is not None
    assert any(f"{path}:1: not JSON" in warning for warning in report.warnings)
    messages = update_layouts(tmp_path, CPU.spec.key, lambda records: records)
    assert len(messages) == 1 and path.read_text() == whole


@pytest.mark.parametrize(
    "fields",
    [
        {"schema": 2},
        {"layouts": (-1,), "configs": {}, "transforms": ()},
        {"layouts": ("a",)},
        {"configs": {"99999": {}}},
        {"transforms": (LayoutTransform(99999, 0, 16, 1.0),)},
        {"predicted": 0.0},
        {"time": "yesterday"},
        {"target": {}},
    ],
    ids=str,
)
def test_a_record_that_means_nothing(chosen: LayoutRecord, fields: dict[str, object]) -> None:
    with pytest.raises(tvm_edge.RecordError):
        LayoutRecord.from_json(replace(chosen, **fields).to_json())  # type: ignore[arg-type]


def test_layouts_that_are_not_faster_are_not_kept(
    chosen: LayoutRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those that were kept before are gone."""
    other = replace(chosen, network="another")
    update_layouts(tmp_path, CPU.spec.key, lambda _: [chosen, other])
    result = tune_small(tmp_path, monkeypatch, faster=False)
    assert not result.taken and "are not kept" in result.summary()
    assert read_layouts(store_of(tmp_path, CPU.spec.key, LAYOUTS))[0] == [other]
