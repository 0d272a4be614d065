"""Damaged files end in an error of ours: no crash, no hang, no foreign exception."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def outcomes(kind: str, first: int, count: int) -> Counter[str]:
    """What became of each file; fails with the seed that ended the worker early."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.worker", kind, str(first), str(count)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"stopped at {lines[-1:]}: {done.stderr[-3000:]}"
    assert len(lines) == count
    return Counter(line[-1] for line in lines)


@pytest.mark.parametrize(
    ("kind", "count", "expected"),
    [
        ("bytes", 80, "InvalidModelError"),
        ("fields", 60, "InvalidModelError"),
        ("artifact", 60, "ArtifactError"),
    ],
)
def test_damaged_files(kind: str, count: int, expected: str) -> None:
    """200 seeded files in all; most are noticed."""
    assert outcomes(kind, 0, count)[expected] > count / 3
