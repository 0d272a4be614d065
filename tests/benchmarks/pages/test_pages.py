"""Pages of results: written from their sections, and short where they are to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.paths import PAGE, RESULTS
from benchmarks.pages.chart import chart
from benchmarks.pages.render import README, pages, put
from benchmarks.pages.sections import Row, areas

_SECTION: dict[str, Any] = {
    "title": "Speed",
    "commands": ["python -m benchmarks run cpu"],
    "bars": {"fast": "met"},
    "blocks": [{"columns": ["network", "ms"], "rows": [["a", "1"]]}],
}


def test_committed_pages_are_what_their_sources_make() -> None:
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, "run: python -m benchmarks pages"


def test_the_short_pages_stay_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= 250
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    _, _, figures = text.partition("<!-- figures: generated -->\n")
    assert len(figures.partition("\n\n")[0].splitlines()) == 2 + 8


def test_every_row_has_a_figure_and_every_picture_is_there() -> None:
    for area in areas():
        assert area.sections
        pictures = [b["picture"] for s in area.sections for b in s.blocks if "picture" in b]
        for picture in (*pictures, area.picture):
            assert (RESULTS / picture).exists(), picture
        for section in area.sections:
            assert section.summary, section.title
            for row in section.summary:
                assert (row.ratio is None) == bool(row.measured), row.what


@pytest.mark.parametrize(
    "change",
    [
        {"bars": {"fast": "nearly"}},
        {"blocks": [{"table": []}]},
        {"blocks": [{"columns": ["a"], "rows": [["1", "2"]]}]},
        {"summary": [{"what": "a"}]},
        {"colour": "red"},
    ],
)
def test_a_file_that_is_no_section_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "areas.json").write_text('{"cpu": {"title": "CPUs"}}')
    folder = tmp_path / "sections" / "cpu"
    folder.mkdir(parents=True)
    (folder / "speed.json").write_text(json.dumps(_SECTION))
    (area,) = areas(tmp_path)
    assert [section.title for section in area.sections] == ["Speed"]
    (folder / "speed.json").write_text(json.dumps(_SECTION | change))
    with pytest.raises(SystemExit, match=r"speed\.json is no section"):
        areas(tmp_path)
    (folder / "speed.json").unlink()
    (tmp_path / "sections" / "gpu").mkdir()
    with pytest.raises(SystemExit, match=r"gpu is no area"):
        areas(tmp_path)


def test_what_people_write_around_a_part_stays() -> None:
    page = "by hand\n<!-- figures: generated -->\nold\n<!-- figures: end -->\nby hand too\n"
    assert put(page, "figures", "new") == page.replace("old", "new\n")
    for broken in (page.replace("generated", "gone"), page + "<!-- figures: end -->", ""):
        with pytest.raises(SystemExit, match=r"has not the lines .*figures: generated"):
            put(broken, "figures", "new")


def test_the_chart_has_a_bar_for_each_labelled_row() -> None:
    rows = [
        Row("a", "m", "d", ratio=0.5, spread=[0.25, 1.0], chart="slow & small"),
        Row("b", "m", "d", ratio=2.0, chart="fast"),
        Row("c", "m", "d", ratio=9.0),
    ]
    drawn = chart(rows)
    assert drawn.index("fast") < drawn.index("slow &amp; small")
    assert ">2.00<" in drawn and ">0.50<" in drawn and ">9.00<" not in drawn
