"""Where the papers' tables have our figures from: sections of the page, an H200, a quick run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import paper_tables
from benchmarks.papers import emdl21, very_deep
from benchmarks.papers.committed import groups_on_h200, with_committed
from benchmarks.papers.measured import Measured, Results, read_results
from benchmarks.papers.quotes import number, quotes_of, sections
from benchmarks.papers.render import papers_part
from benchmarks.parallel_workloads import groups

_PAGE = """# Measured

<!-- missed: generated -->
## Missed
| network | ms |
|---|---|
| a | 9 |
<!-- missed: end -->

## Speed: `python -m benchmarks.speed`

2026-11-20, a machine with **two
cores**. The mean is 1.5.

| network | MiB |
|---|---|
| a | 1 |

**Later**:

| network | ms | note |
|---|---|---|
| a | **1,024.5** [3–4] | – |
| b | – | x |
"""
_ENTRY: dict[str, Any] = {
    "exhibit": "icpp19 Table 1",
    "section": "Speed",
    "behind": "**Later**",
    "label": "llvm, a machine",
    "machine": ["2026-11-20, a machine with **two cores**"],
    "columns": {"network": "network", "time": "ms"},
}


def _quoted(tmp_path: Path, **changed: Any) -> Any:
    path = tmp_path / "quotes.json"
    path.write_text(json.dumps([_ENTRY | changed]), encoding="utf-8")
    (found,) = quotes_of(_PAGE, path)
    return found


def test_a_quote_is_what_the_page_has(tmp_path: Path) -> None:
    found = _quoted(tmp_path)
    assert found.rows == [
        {"network": "a", "time": "**1,024.5** [3–4]"},
        {"network": "b", "time": "–"},
    ]
    assert found.numbers("network", "time") == {"a": 1024.5}
    assert found.command == "python -m benchmarks.speed"
    assert found.machine_line == 'section "Speed" above: 2026-11-20, a machine with two cores'
    assert _quoted(tmp_path, only=["b"]).rows == [{"network": "b", "time": "–"}]
    # The first table that has the columns, and none of what is generated.
    assert _quoted(tmp_path, behind="", columns={"n": "network"}).rows == [{"n": "a"}]
    assert sections(_PAGE).keys() == {"Speed"}
    assert _quoted(tmp_path, columns={}, says="The mean is 1.5.").rows == []


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"section": "Space"}, "the section 'Space'"),
        ({"machine": ["2026-11-21"]}, "the words '2026-11-21' in the section 'Speed'"),
        ({"behind": "**Sooner**"}, r"the words '\*\*Sooner\*\*'"),
        ({"says": "The mean is 1.6."}, r"the words 'The mean is 1\.6\.'"),
        ({"columns": {"network": "network", "time": "s"}}, "a table with network, s behind"),
        ({"only": ["a", "c"]}, "the rows c,"),
    ],
)
def test_a_quote_that_the_page_has_no_more_is_named(
    tmp_path: Path, changed: dict[str, Any], what: str
) -> None:
    with pytest.raises(SystemExit, match=rf"RESULTS\.md has not {what}.*icpp19 Table 1; write"):
        _quoted(tmp_path, **changed)


def test_numbers_of_cells() -> None:
    cells = ("**1.07** [1.03–1.10]", "2,177", "11.7", "–", "")
    assert [number(cell) for cell in cells] == [1.07, 2177.0, 11.7, None, None]


def test_quoted_figures_stand_beside_the_papers() -> None:
    text = papers_part(with_committed(Results([])), {})
    page = paper_tables._RESULTS.read_text(encoding="utf-8")
    _, section = sections(page)["Networks on a GPU"]
    (line,) = re.findall(r"^\| squeezenet1_0 \| 26/24/37 .*$", section, re.M)
    cells = [number(cell) for cell in line.split("|")[3:7]]
    cuda, opencl, library = cells[0], cells[1], cells[3]
    assert cuda and opencl and library
    (row,) = re.findall(r"^\| SqueezeNet1\.0 \| 26\.58 .*$", text, re.M)
    assert f"| {cuda / 1e3:.4g} | {library / 1e3:.4g} | **{library / cuda:.2f}** |" in row
    (row,) = re.findall(r"^\| SqueezeNet1\.0 \| 66\.61 .*$", text, re.M)
    assert f"| {opencl / 1e3:.4g} | {library / 1e3:.4g} | **{library / opencl:.2f}** |" in row
    # Of five rules the first has no score where no size obeys it.
    rows = [line for line in text.splitlines() if line.startswith("| cuda, H200 | Dw-Conv |")]
    assert rows == ["| cuda, H200 | Dw-Conv | – | 0.98 | 0.99 | 0.95 | 0.99 |"]
    # Microseconds of one table and milliseconds of the other become milliseconds.
    tuned = [line for line in text.splitlines() if line.startswith("| ResNet50_v1 | cuda, H200 |")]
    times = [float(cell) for cell in tuned[0].split("|")[3:5]]
    assert all(0.3 < ms < 1 for ms in times)
    assert re.search(
        r"^- `python -m benchmarks\.gpu`: section \"Networks on a GPU\" above", text, re.M
    )


def test_groups_on_an_h200_count_once_each() -> None:
    measured = groups_on_h200()
    titles = [row["title"] for row in measured.result]
    assert len(titles) > len(set(titles)) == len(groups())
    found = dict(
        (tuple(map(tuple, members)), gain) for members, gain in emdl21.merged(measured, "stream")
    )
    assert len(found) == len(groups())
    one = Measured("groups-cuda", "", {"cpu": ""}, "", False, False, None)
    row = {"off": [4.0, 5.0, 6.0], "1 0": [4.0], "0 1": [2.5], "0": [1.0], "concurrent": [1.0]}
    again = [
        {"title": "0: a", "us": {"stream": row}},
        {"title": "0: a", "us": {"stream": {"off": [5.0], "1 0": [4.0]}}},
    ]
    again.append({"title": "1: b", "us": {}})
    one = Measured(**{**one.__dict__, "result": again})
    assert [gain for _, gain in emdl21.merged(one, "stream")] == [1.25]
    again.reverse()
    assert [gain for _, gain in emdl21.merged(one, "stream")] == [2.0]


def test_strategies_are_told_apart_by_memory() -> None:
    def row(target: str, strategy: str, memory: str, seconds: float | None) -> dict[str, Any]:
        run = {"failed": "exit status 1"} if seconds is None else {"seconds": seconds}
        return {
            "network": "yolov1",
            "target": target,
            "strategy": strategy,
            "memory": memory,
            "run": run,
        }

    rows = [
        row("llvm", "as is", "separate", 1.0),
        row("opencl", "as is", "separate", None),
        row("opencl", "split", "separate", 2.0),
        row("opencl", "streamed", "separate", 9.0),
        row("opencl", "split", "unified", 3.0),
    ]
    found = Measured("strategies-llvm", "", {"cpu": ""}, "", False, False, {"strategies": rows})

    def seconds(memory: str) -> list[dict[str, float]]:
        each = very_deep.strategies(found, memory)
        return [{name: run["seconds"] for name, run in runs.items()} for _, _, runs in each]

    assert seconds("separate") == [{"CPU": 1.0, "Split": 2.0}]
    assert seconds("unified") == [{"CPU": 1.0, "Split": 3.0}]
    rows[1:] = []
    assert seconds("separate") == [{"CPU": 1.0}] and seconds("unified") == []


def test_a_gpu_without_the_cpu_beside_it_is_measured() -> None:
    def found(target: str, joules: float | str) -> Measured:
        run = {"seconds": 1.0, "joules": joules, "peak": 1e9}
        row = {"network": "yolov1", "target": target, "strategy": "as is", "memory": "separate"}
        result = {"strategies": [row | {"run": run}]}
        return Measured(f"strategies-{target}", "", {"cpu": ""}, "", False, False, result)

    cpu, gpu = found("llvm", "not measured"), found("cuda", 2.0)
    for results, sources in (([cpu], [[cpu], [], []]), ([cpu, gpu], [[cpu, gpu], [], [gpu]])):
        tables = very_deep.exhibits(Results(results))[:3]
        assert [list(table.sources) for table in tables] == sources
        missing = ["All columns of a GPU" in " ".join(table.notes) for table in tables]
        assert missing == [gpu not in of for of in sources]


def test_a_quick_job_runs_and_its_figures_are_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paper_tables.main(["--quick", "--jobs", "complexity-llvm", "--save", str(tmp_path)])
    assert "complexity-llvm: python -m benchmarks.operator_complexity" in capsys.readouterr().out
    (measured,) = read_results([tmp_path]).of("complexity")
    assert measured.quick and not measured.failed
    found = measured.result["networks"]["mobilenet_v2"]
    text = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\| MobileNet-V2 \|(?: [\d.]+ \|){3} \d+% .*$", text, re.M)
    mflop, parameters = (float(cell) for cell in line.split("|")[2:4])
    # 300 million multiply-adds and 3.5 million parameters, as published.
    assert mflop == pytest.approx(2 * 300, rel=0.05) and parameters == pytest.approx(3.5, rel=0.02)
    assert line.endswith(f"| {found['spread']['kernels']['at_most_1_percent']:.0%} |")
    assert "**quick: shows that it runs" in text
