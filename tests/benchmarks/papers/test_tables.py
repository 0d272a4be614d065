"""The papers' tables: their figures, the jobs that measure ours, and the page they are put in."""

from __future__ import annotations

import json
import re
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.catalogue import BENCHMARKS
from benchmarks.common.paths import RESULTS
from benchmarks.papers import tables
from benchmarks.papers.figures import papers
from benchmarks.papers.jobs import Job, jobs, measure, run_line
from benchmarks.papers.measurements import Results, read_results
from benchmarks.papers.plots import picture_of
from benchmarks.papers.render import papers_part
from benchmarks.papers.sources import with_committed
from tvm_edge import zoo

QUICK = Path(__file__).with_name("results")
"""What ``--quick`` wrote on a machine with two cores and pocl."""

_ASKED = {
    "icpp19": [f"Table {n}" for n in range(1, 6)],
    "emdl21": [f"Figure {n}" for n in (1, 2, 3, 8, 9, 10, 11)],
    "apsys20": ["Table 2", "Table 3", "Figure 5", "Figure 6"],
    "very_deep": [f"Table {n}" for n in range(1, 5)],
}
_STUDIED = ("icpp19", "Table 4")  # by kernels that were written for it alone
_MACHINE = {"cpu": "a CPU", "cores": 2, "python": "3", "versions": {}, "date": "today"}


def test_speed_ups_that_the_papers_print_are_those_of_their_times() -> None:
    checked = 0
    for title, exhibit in papers()["icpp19"].exhibits.items():
        for row in exhibit.rows:
            if row[-1] is None:
                continue
            # Tables 1 to 3 have their own time in front of the library's.
            first, second = row[-3:-1]
            found = second / first if title in ("Table 1", "Table 2", "Table 3") else first / second
            if found != pytest.approx(row[-1], rel=0.02):
                assert row[:2] == ["Acer aiSage (Mali T-860)", "SSD_ResNet50"] and exhibit.unclear
            checked += 1
    assert checked == 3 + 6 + 6 + 9 + 9


def test_networks_of_the_papers_are_in_the_zoo() -> None:
    for paper in papers().values():
        assert set(paper.zoo.values()) <= set(zoo.names())
    printed = {
        key: {row[0] for t in p.exhibits.values() for row in t.rows} for key, p in papers().items()
    }
    assert set(papers()["icpp19"].zoo) <= printed["icpp19"] | {
        row[1] for row in papers()["icpp19"].exhibits["Table 4"].rows
    }
    assert set(papers()["very_deep"].zoo) <= printed["very_deep"]


def test_without_results_every_exhibit_is_shown_as_not_measured() -> None:
    text = papers_part(Results([]), {})
    for key, titles in _ASKED.items():
        name = papers()[key].name
        for title in titles:
            (part,) = re.findall(
                rf"^\*\*{re.escape(name)}, {title}\*\*(.*?)(?=^\*\*|^##|\Z)", text, re.M | re.S
            )
            how = (
                "the study is at commit"
                if (key, title) == _STUDIED
                else "`python -m benchmarks run "
            )
            assert f"not measured; {how}" in part, (name, title)
            for row in papers()[key].exhibits[title].rows:
                assert f"| {row[0]}" in part or str(row[0]) in part


def test_measured_figures_stand_beside_the_papers(tmp_path: Path) -> None:
    page = tmp_path / "papers.md"
    tables.main(["--from", str(QUICK), "--results", str(page)])
    text = page.read_text(encoding="utf-8")
    found = json.loads((QUICK / "cpu-llvm.json").read_text(encoding="utf-8"))
    (row,) = found["result"]["rows"]
    ours = row["runtimes"]["tvm-edge"]["ms"]
    (line,) = re.findall(r"^\| SqueezeNet1\.0 \| 52\.1 \| 42\.01 \| 0\.81 \|.*$", text, re.M)
    assert f"| {ours:.4g} |" in line
    spread = json.loads((QUICK / "complexity-llvm.json").read_text(encoding="utf-8"))
    share = spread["result"]["networks"]["mobilenet_v2"]["spread"]["operators"]["under_5_mflop"]
    (line,) = re.findall(r"^\| MobileNet-V2 \|(?: [\d.]+ \|){3} \d+% .*$", text, re.M)
    assert f"| {share:.0%} |" in line
    # What left the OpenCL device, which is the CPU, is not called its time.
    (line,) = re.findall(r"^\| SqueezeNet1\.0 \| 66\.61 \|.*$", text, re.M)
    assert " on llvm |" in line
    gains = [line for line in text.splitlines() if line.startswith("| 2 | opencl, ")]
    assert len(gains) == 1 and gains[0].endswith("| 50% | 2 |")
    (line,) = re.findall(r"^\| VGG 16 \| 16 \| 1\.24 .*$", text, re.M)
    assert line.endswith("| 89% |")
    found = json.loads((QUICK / "strategies-llvm.json").read_text(encoding="utf-8"))
    seconds = found["result"]["strategies"][0]["run"]["seconds"]
    (line,) = re.findall(r"^\| Small \| llvm, [^|]* \| [\d.]+ \| .* not measured .*$", text, re.M)[
        :1
    ]
    assert f"| {seconds:.4g} | not measured |" in line
    scores = json.loads((QUICK / "workgroup-opencl.json").read_text(encoding="utf-8"))
    first, second = (layer["importance"] for layer in scores["result"]["layers"].values())
    (line,) = re.findall(r"^\| opencl, [^|]* \| Dw-Conv \| .*$", text, re.M)[:1]
    assert line.endswith(f"| {(first[4] + second[4]) / 2:.4g} |")
    assert "**quick" in text and "`python -m benchmarks run cpu " in text
    drawn = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")}
    assert drawn == ({picture_of(key) for key in papers()} if find_spec("matplotlib") else set())


def test_the_committed_page_is_what_its_sources_make() -> None:
    pictures = {key: picture_of(key) for key in papers()}
    drawn = {key: name for key, name in pictures.items() if (RESULTS / name).exists()}
    found = papers_part(with_committed(read_results([RESULTS / "measured"])), drawn)
    again = "run: python -m benchmarks run paper_tables --from benchmarks/results/measured"
    assert (RESULTS / "papers.md").read_text(encoding="utf-8") == found, again


def test_a_folder_or_file_that_is_not_a_result_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="nowhere is not a folder"):
        read_results([tmp_path / "nowhere"])
    (tmp_path / "cpu-llvm.json").write_text('{"job": "cpu-llvm"')
    with pytest.raises(SystemExit, match=r"cpu-llvm\.json is not a result"):
        read_results([tmp_path])


def test_a_benchmark_that_fails_is_reported_with_its_last_line(tmp_path: Path) -> None:
    job = Job("cpu-llvm", "cpu", ("--nosuch",))
    found = measure(job, _MACHINE, tmp_path, quick=False)
    assert found.result is None and "--nosuch" in found.failed
    found.save(tmp_path)
    text = papers_part(read_results([tmp_path]), {})
    assert f"`python -m benchmarks run cpu --nosuch` (llvm, a CPU): {found.failed}" in text


def test_a_benchmark_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    with (tmp_path / "slow.log").open("w") as log:
        reason = run_line(["sh", "-c", "sleep 100 & echo $!; wait"], log, 0.5)
    assert reason == "no result after 0.5 s"
    child = int((tmp_path / "slow.log").read_text())
    for _ in range(100):  # until whoever adopted it has buried it
        if not _is_alive(child):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {child} lives")


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_jobs_are_commands_of_benchmarks_that_take_a_json_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    every = jobs(("llvm", "opencl", "cuda"), {"opencl": {"on_cpu": True}})
    assert len({job.name for job in every}) == len(every)
    for job in every:
        with pytest.raises(SystemExit):
            BENCHMARKS[job.benchmark].run(["--help"])
        known = capsys.readouterr().out.partition("\noptions:\n")[2]
        options = {word for word in (*job.arguments, *(job.quick or ())) if word[:2] == "--"}
        for option in {"--json", *options}:
            assert f"  {option} " in known, (job.name, option)
