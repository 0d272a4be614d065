"""Sources of our figures in the papers' tables: sections of the page, an H200, a quick run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.catalogue import BENCHMARKS
from benchmarks.fusion.workloads import groups
from benchmarks.papers import emdl21, tables, very_deep
from benchmarks.papers.figures import papers
from benchmarks.papers.measurements import Measured, Results, read_results
from benchmarks.papers.quotes import Quoted, read_quotes
from benchmarks.papers.render import papers_part
from benchmarks.papers.sources import groups_on_h200, with_committed

_ENTRY: dict[str, Any] = {
    "exhibit": "icpp19 Table 1",
    "section": "Speed",
    "command": "python -m benchmarks run speed",
    "label": "llvm, a machine",
    "machine": "2026-11-20, a machine with two cores",
    "columns": ["network", "tvm-edge, µs", "peer, ms", "note"],
    "rows": [["a", 1024.5, 3, None], ["b", 2000, 4, "x"]],
}


def _quotes(tmp_path: Path, text: str) -> list[Quoted]:
    path = tmp_path / "quotes.json"
    path.write_text(text, encoding="utf-8")
    return read_quotes(path)


def test_a_quote_is_a_table_with_its_section(tmp_path: Path) -> None:
    (found,) = _quotes(tmp_path, json.dumps([_ENTRY]))
    assert found.milliseconds("tvm-edge") == {"a": 1.0245, "b": 2.0}
    assert found.milliseconds("peer") == {"a": 3.0, "b": 4.0}
    assert found.milliseconds("other") == {}
    assert found.records[1] == {"network": "b", "tvm-edge, µs": 2000, "peer, ms": 4, "note": "x"}
    assert found.machine_line == 'section "Speed": 2026-11-20, a machine with two cores'


@pytest.mark.parametrize("text", ["[", json.dumps([{"exhibit": "icpp19 Table 1"}]), "[1]"])
def test_a_file_that_is_no_list_of_quotes_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(SystemExit, match=r"quotes\.json is no list of quotes"):
        _quotes(tmp_path, text)


def test_every_quote_is_of_an_exhibit_and_of_a_command_that_there_is() -> None:
    for quote in read_quotes():
        paper, _, title = quote.exhibit.partition(" ")
        assert title in papers()[paper].exhibits
        assert quote.command.split()[:4] == ["python", "-m", "benchmarks", "run"]
        assert quote.command.split()[4] in BENCHMARKS
        assert all(len(row) == len(quote.columns) for row in quote.rows)


def test_quoted_figures_stand_beside_the_papers() -> None:
    text = papers_part(with_committed(Results([])), {})
    tables = {
        quote.exhibit: {row["network"]: row for row in quote.records}
        for quote in read_quotes()
        if quote.section == "Networks on a GPU"
    }
    for exhibit, theirs in (("icpp19 Table 3", 26.58), ("icpp19 Table 2", 66.61)):
        row = tables[exhibit]["squeezenet1_0"]
        ours, library = row["tvm-edge, µs"], row["peer, µs"]
        (line,) = re.findall(rf"^\| SqueezeNet1\.0 \| {theirs} .*$", text, re.M)
        assert f"| {ours / 1e3:.4g} | {library / 1e3:.4g} | **{library / ours:.2f}** |" in line
    # Of five rules the first has no score where no size obeys it.
    rows = [line for line in text.splitlines() if line.startswith("| cuda, H200 | Dw-Conv |")]
    assert rows == ["| cuda, H200 | Dw-Conv | – | 0.98 | 0.99 | 0.95 | 0.99 |"]
    # Microseconds of one table and milliseconds of the other become milliseconds.
    tuned = [line for line in text.splitlines() if line.startswith("| ResNet50_v1 | cuda, H200 |")]
    times = [float(cell) for cell in tuned[0].split("|")[3:5]]
    assert all(0.3 < ms < 1 for ms in times)
    assert re.search(
        r"^- `python -m benchmarks run gpu`: section \"Networks on a GPU\":", text, re.M
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


@pytest.mark.full  # a process that compiles the networks of the zoo
def test_a_quick_job_runs_and_its_figures_are_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.main(["--quick", "--jobs", "complexity-llvm", "--save", str(tmp_path)])
    assert (
        "complexity-llvm: python -m benchmarks run operator_complexity" in capsys.readouterr().out
    )
    (measured,) = read_results([tmp_path]).of("complexity")
    assert measured.quick and not measured.failed
    found = measured.result["networks"]["mobilenet_v2"]
    text = (tmp_path / "papers.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\| MobileNet-V2 \|(?: [\d.]+ \|){3} \d+% .*$", text, re.M)
    mflop, parameters = (float(cell) for cell in line.split("|")[2:4])
    # 300 million multiply-adds and 3.5 million parameters, as published.
    assert mflop == pytest.approx(2 * 300, rel=0.05) and parameters == pytest.approx(3.5, rel=0.02)
    assert line.endswith(f"| {found['spread']['kernels']['at_most_1_percent']:.0%} |")
    assert "**quick: shows that it runs" in text
