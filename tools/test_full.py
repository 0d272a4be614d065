"""Run the full-size tests and summarise them in tests/test-full.txt, which is committed.

python -m tools.test_full
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

__all__ = ["Case", "read_cases", "summary"]

_OUT = Path(__file__).parents[1] / "tests/test-full.txt"
_RUNS = (("", "full and not as_written"), ("-cl-opt-disable", "full and as_written"))
"""pocl's build flags, and the tests that run with them."""
_MOST = 15  # failures, and reasons for skipping, that are listed
_WIDTH = 110


@dataclass(frozen=True)
class Case:
    """A test that ran: its name, outcome, seconds, and the message of the outcome."""

    name: str
    outcome: str
    seconds: float
    message: str = ""


def read_cases(xml: str) -> list[Case]:
    """Read the tests out of a JUnit file that pytest wrote."""
    return [_case(element) for element in ElementTree.fromstring(xml).iter("testcase")]


def _case(element: ElementTree.Element) -> Case:
    module = element.get("classname", "").replace(".", "/")
    name = f"{module}.py::{element.get('name')}"
    seconds = float(element.get("time", 0))
    for tag, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if (found := element.find(tag)) is not None:
            return Case(name, outcome, seconds, found.get("message", ""))
    return Case(name, "passed", seconds)


def summary(machine: Mapping[str, Any], cases: Sequence[Case], seconds: float) -> str:
    """Describe a run in less than 60 lines.

    Parameters
    ----------
    machine : dict
        As of :func:`benchmarks.common.machine.describe_machine`.
    cases : sequence of Case
    seconds : float
        Wall time of all runs.
    """
    counts = Counter(case.outcome for case in cases)
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    reasons = Counter(case.message for case in cases if case.outcome == "skipped")
    failures = [f"{c.name}: {c.message}" for c in cases if c.outcome == "failed"]
    slowest = sorted(cases, key=lambda case: -case.seconds)[:10]
    return "\n".join(
        [
            "The full-size tests of make test-full",
            f"{machine['date']}, {machine['cpu']}, {machine['cores']} cores",
            f"Python {machine['python']}, {versions}",
            "",
            ", ".join(f"{counts[key]} {key}" for key in ("passed", "failed", "skipped"))
            + f" in {seconds / 60:.0f} minutes",
            *_section("Failed", failures),
            *_section("Skipped", [f"{n:5}  {reason}" for reason, n in reasons.most_common()]),
            *_section("Slowest", [f"{case.seconds:5.0f} s  {case.name}" for case in slowest]),
            "",
        ]
    )


def _section(title: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    shown = ["  " + line.partition("\n")[0][:_WIDTH] for line in lines[:_MOST]]
    more = [f"  and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
    return ["", title, *shown, *more]


def main() -> int:
    """Run both parts of the tests, write the summary, and return an exit status."""
    from benchmarks.common.machine import describe_machine

    cases: list[Case] = []
    status, seconds = 0, 0.0
    # As kernels are built for use; make test has LLVM leave optimisation out.
    changes = {"TVM_EDGE_TEST_OPTIMISED": "1"}
    with tempfile.TemporaryDirectory() as folder:
        for index, (flags, marks) in enumerate(_RUNS):
            file = Path(folder) / f"{index}.xml"
            command = [sys.executable, "-m", "pytest", "-m", marks, "-n", "2", "--tb=short"]
            command += ["--no-header", "-p", "no:cacheprovider", f"--junitxml={file}"]
            environment = {**os.environ, **changes, "POCL_EXTRA_BUILD_FLAGS": flags}
            status = subprocess.run(command, env=environment).returncode or status
            xml = file.read_text()
            seconds += float(ElementTree.fromstring(xml)[0].get("time", 0))
            cases += read_cases(xml)
    text = summary(describe_machine(), cases, seconds)
    _OUT.write_text(text)
    print(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
