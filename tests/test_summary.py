"""The summary of the full-size tests."""

from __future__ import annotations

from pathlib import Path

from tools.test_full import Case, read_cases, summary

MACHINE = {
    "cpu": "EPYC (x86_64/znver4)",
    "cores": 2,
    "python": "3.11.7",
    "versions": {"tvm-edge": "0.2.0", "numpy": "2.4.6"},
    "date": "2026-11-25",
}
JUNIT = """<?xml version="1.0"?><testsuites><testsuite time="9.5">
<testcase classname="tests.zoo.test_a" name="test_x[1]" time="4.25" />
<testcase classname="tests.zoo.test_a" name="test_y" time="0.5">
<skipped type="pytest.skip" message="no cuda device">tests/zoo/test_a.py:3: no cuda</skipped>
</testcase>
<testcase classname="tests.test_b" name="test_z" time="1">
<failure message="assert 1 == 2&#10;because">trace</failure>
</testcase>
<testcase classname="tests.test_b" name="test_w" time="1"><error message="no file" /></testcase>
</testsuite></testsuites>"""


def test_counts_reasons_and_times() -> None:
    text = summary(MACHINE, read_cases(JUNIT), 180)
    assert text.splitlines()[1:] == [
        "2026-11-25, EPYC (x86_64/znver4), 2 cores",
        "Python 3.11.7, tvm-edge 0.2.0, numpy 2.4.6",
        "",
        "1 passed, 2 failed, 1 skipped in 3 minutes",
        "",
        "Failed",
        "  tests/test_b.py::test_z: assert 1 == 2",
        "  tests/test_b.py::test_w: no file",
        "",
        "Skipped",
        "      1  no cuda device",
        "",
        "Slowest",
        "      4 s  tests/zoo/test_a.py::test_x[1]",
        "      1 s  tests/test_b.py::test_z",
        "      1 s  tests/test_b.py::test_w",
        "      0 s  tests/zoo/test_a.py::test_y",
    ]


def test_it_is_short_whatever_happens() -> None:
    cases = [
        Case(f"tests/test_{i}.py::test", outcome, i, f"message {i}\nmore" * 50)
        for i in range(400)
        for outcome in ("passed", "failed", "skipped")
    ]
    text = summary(MACHINE, cases, 60)
    assert len(text.splitlines()) < 60 and max(map(len, text.splitlines())) < 120
    assert text.count("  and 385 more") == 2


def test_the_committed_one_is() -> None:
    assert len((Path(__file__).parent / "test-full.txt").read_text().splitlines()) < 60
