"""A report as a page that stands by itself."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model, unsupported_model
from tests.report.html_reader import Page
from tests.report.reports import NASTY, made_report, profile_of
from tvm_edge.report import RecordsInfo, SplitInfo

SECTIONS = (
    "Summary",
    "Placement",
    "Time",
    "Kernels",
    "Fusion groups",
    "Memory",
    "Operators",
    "Copies",
    "Precision",
    "Layouts",
    "Compilation",
)


def written(
    report: tvm_edge.CompileReport, folder: Path, profile: tvm_edge.Profile | None = None
) -> tuple[str, Page]:
    text = report.to_html(folder / "report.html", profile).read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    return text, page


def test_the_page_has_the_report(tmp_path: Path) -> None:
    model = make_model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name=NASTY),
            helper.make_node("Relu", ["c"], ["r"], name="relu"),
            helper.make_node("GlobalAveragePool", ["r"], ["y"], name="pool"),
        ],
        {"x": (1, 4, 8, 8)},
        ["y"],
        {"w": np.ones((6, 4, 3, 3), "float32")},
    )
    report = tvm_edge.analyze(model, "mali-t860", fallback=["pool"])
    _, page = written(report, tmp_path)
    for operator in report.operators:
        row = [operator.name, operator.op_type, operator.device, operator.reason]
        assert row in [found[:4] for found in page.tables["operators-table"]]
    for number, kernel in enumerate(report.kernels, 1):
        row = [str(number), kernel.name, ", ".join(kernel.operators), kernel.device]
        assert row in [found[:4] for found in page.tables["kernels-table"]]
    (crossing,) = report.copies
    (row,) = page.tables["copies-table"][1:]
    assert row[0] == crossing["tensor"] and row[-3:] == ["shared memory", "0.8", "0.0"]
    assert "0 copies, 1 tensor in shared memory" in page.text
    assert "864\u00a0B, shared" in page.text  # on the edge of the graph too
    assert report.memory is not None
    sizes = {row[0]: row[2] for row in page.tables["memory-table"]}
    assert sizes["peak"] == f"{report.memory.peak:,}" and sizes["activations on llvm"] == "0"


def test_memory_that_only_the_run_sizes_is_told(tmp_path: Path) -> None:
    report = made_report()
    _, page = written(report, tmp_path)
    assert "that the run sizes" not in page.text
    kernels = tuple(replace(kernel, results=0) for kernel in report.kernels[:2])
    sized = replace(report, kernels=(*kernels, *report.kernels[2:]))
    _, page = written(sized, tmp_path)
    assert "without 2 results that the run sizes" in page.text


def test_sections_in_order_and_one_of_each_id(tmp_path: Path) -> None:
    _, page = written(made_report(), tmp_path)
    assert tuple(text for level, text in page.headings if level == 2) == SECTIONS
    levels = [level for level, _ in page.headings]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(set(page.ids)) == len(page.ids)
    links = [str(a["href"]) for tag, a in page.tags if tag == "a"]
    assert links and {link.removeprefix("#") for link in links} <= set(page.ids)


def test_nothing_comes_from_elsewhere_and_names_do_nothing(tmp_path: Path) -> None:
    """With and without a profile; a policy lets the page's own script run and nothing else."""
    report = made_report()
    for profile in (None, profile_of(report)):
        text, page = written(report, tmp_path, profile)
        tags = [tag for tag, _ in page.tags]
        assert (tags.count("script"), tags.count("style"), tags.count("title") > 1) == (1, 1, True)
        assert not {"img", "link", "iframe", "object", "base"} & set(tags)
        for _, attributes in page.tags:
            assert not {"src", "xlink:href", "style"} & set(attributes)
            assert not any(name.startswith("on") for name in attributes)
            assert (attributes.get("href") or "#").startswith("#")
        assert set(re.findall(r"url\((.)", text)) <= {"#"} and "@import" not in text
        assert "//" not in re.sub(r"^\s*//.*$", "", text, flags=re.M)  # but the script's comments
        (policy,) = (str(a["content"]) for t, a in page.tags if "http-equiv" in a)
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        for where in ("operators", "kernels", "copies", "fusion", "precision"):
            assert any(NASTY in cell for row in page.tables[f"{where}-table"] for cell in row)


def test_without_a_profile_it_says_that_nothing_was_measured(tmp_path: Path) -> None:
    _, page = written(made_report(), tmp_path)
    assert "Not measured." in page.text and "model.profile()" in page.text
    assert page.tables["kernels-table"][0][-2:] == ["% of FLOPs", "% of bytes"]
    shares = [float(row[-1]) for row in page.tables["kernels-table"][1:]]
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares))  # rounded


def test_with_a_profile_it_has_times(tmp_path: Path) -> None:
    report = made_report()
    _, page = written(report, tmp_path, profile_of(report))
    head, first, *_ = page.tables["kernels-table"]
    assert head[-4:] == ["µs", "% of run", "GFLOP/s", "GB/s"]
    assert first[-4] == "30.0" and "Not measured" not in page.text
    lanes = [a for t, a in page.tags if t == "svg" and str(a.get("class")).startswith("launch")]
    assert len(lanes) == len(report.kernels)


def test_a_profile_of_another_model(tmp_path: Path) -> None:
    report = made_report()
    with pytest.raises(tvm_edge.InputError, match=r"profile the model.*model.profile\(\)"):
        report.to_html(tmp_path / "report.html", profile_of(made_report(30)))


def test_origins_are_counted(tmp_path: Path) -> None:
    _, page = written(made_report(), tmp_path)
    rows = {row[0]: row[2] for row in page.tables["origins-table"][1:]}
    assert rows == {"tuned": "5", "transferred": "5", "heuristic": "5", "fallback": "5"}


def test_how_much_tuning_records_cover(tmp_path: Path) -> None:
    report = made_report()
    line = "Tuning records: of 20 convolutions 5 tuned, 4 transferred, 11 heuristic"
    _, page = written(report, tmp_path)
    assert f"{line}; ignored:" in page.text
    assert f"{NASTY} of arm/mali-t860: another version" in page.text
    _, page = written(replace(report, records=RecordsInfo(20, 5, 4)), tmp_path)
    assert f"{line}." in page.text and "ignored" not in page.text
    _, page = written(replace(report, records=None), tmp_path)
    assert "Tuning records" not in page.text


def test_groups_of_fusion_with_why_or_none(tmp_path: Path) -> None:
    _, page = written(made_report(), tmp_path)
    assert page.tables["fusion-table"] == [
        ["operators", "kernels", "taken", "reason"],
        ["left, right", "a, b", "yes", "faster: 1.5 times"],
        [f"one, {NASTY}", "c, d", "no", "fills the device alone"],
    ]
    _, page = written(replace(made_report(), fusion_groups=()), tmp_path)
    assert "fusion-table" not in page.tables and "None: no independent operators" in page.text


def test_layers_whose_weights_are_streamed(tmp_path: Path) -> None:
    split = SplitInfo(NASTY, "llvm", "output", 8, 3 << 20, 21 << 20)
    _, page = written(replace(made_report(), splits=(split,)), tmp_path)
    assert page.tables["splits-table"][1:] == [[NASTY, "llvm", "output", "8", "21.0", "6.0"]]
    _, page = written(made_report(), tmp_path)
    assert "splits-table" not in page.tables


def test_a_report_with_nothing_in_it(tmp_path: Path) -> None:
    """Every section says that it is empty; so it does of a report that has no edges."""
    memory = tvm_edge.analyze(unsupported_model(), "llvm").memory
    bare = tvm_edge.CompileReport("m", "llvm (x)", (), (), memory)
    _, page = written(bare, tmp_path)
    assert tuple(text for level, text in page.headings if level == 2) == SECTIONS
    assert "No kernels." in page.text and "No operators are left to run." in page.text
    report = made_report()
    old = replace(report, operators=tuple(replace(o, inputs=()) for o in report.operators))
    assert report.memory is not None
    old = replace(old, memory=replace(report.memory, over_time={}))
    _, page = written(old, tmp_path)
    assert "does not say which operators read which" in page.text
    assert "cannot be told from its storage plan" in page.text


def test_unsupported_operators_are_on_the_page(tmp_path: Path) -> None:
    report = tvm_edge.analyze(unsupported_model(), "llvm")
    _, page = written(report, tmp_path)
    rows = page.tables["unsupported-table"]
    assert ["com.example.Mystery", "first, second"] in [row[:2] for row in rows]
    assert "This model cannot be compiled" in page.text
    nodes = [a for t, a in page.tags if str(a.get("class")).startswith("node ")]
    assert len(nodes) == sum(not operator.constant for operator in report.operators)
    assert [node["class"] for node in nodes].count("node missing") == 3


def test_a_model_of_500_operators_is_a_page_of_a_megabyte(tmp_path: Path) -> None:
    report = made_report(500)
    path = report.to_html(tmp_path / "report.html", profile_of(report))
    assert 300_000 < path.stat().st_size < 1_000_000


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    report = tvm_edge.analyze(unsupported_model(), "llvm")
    with pytest.raises(tvm_edge.InputError, match="choose another path"):
        report.to_html(tmp_path / "absent" / "report.html")
