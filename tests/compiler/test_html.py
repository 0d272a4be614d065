"""A report as a page that stands by itself."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import tvm_edge
from tests.compiler.test_analyze import unsupported_model
from tests.onnx_models import make_model

NASTY = '<script>alert("&1")</script>'


class Page(HTMLParser):
    """Tags with attributes, the cells of each row, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["td"]:
            self.rows[-1][-1] += data


def test_the_page_has_the_report_and_nothing_from_elsewhere(tmp_path: Path) -> None:
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
    path = report.to_html(tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert "script" not in page.tags
    assert not page.attributes & {"src", "href"} and "url(" not in text
    for operator in report.operators:
        assert [operator.name, operator.op_type, operator.device, operator.reason] in [
            row[:4] for row in page.rows
        ]
    for kernel in report.kernels:
        assert [kernel.name, ", ".join(kernel.operators)] in [row[:2] for row in page.rows]
    (crossing,) = report.copies
    (row,) = (row for row in page.rows if row[:2] == [crossing["tensor"], str(crossing["shape"])])
    assert crossing["zero_copy"] and row[-2:] == [str(crossing["bytes"]), "0"]
    assert "0 copies, 1 crossing in shared memory" in text
    assert report.memory is not None
    assert ["memory: peak", f"{report.memory.peak:,} bytes"] in page.rows


def test_unsupported_operators_are_on_the_page(tmp_path: Path) -> None:
    path = tvm_edge.analyze(unsupported_model(), "llvm").to_html(tmp_path / "report.html")
    rows = Page(path.read_text(encoding="utf-8")).rows
    assert ["com.example.Mystery", "first, second"] in [row[:2] for row in rows]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    report = tvm_edge.analyze(unsupported_model(), "llvm")
    with pytest.raises(tvm_edge.InputError, match="choose another path"):
        report.to_html(tmp_path / "absent" / "report.html")
