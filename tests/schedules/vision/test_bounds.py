"""No CPU kernel touches anything outside of its tensors and of its own memory."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.marks import in_full

ROOT = Path(__file__).parents[3]


def run_checked(*args: str) -> subprocess.CompletedProcess[str]:
    """Run kernels with checks in a process of their own, which a bad access ends."""
    command = [sys.executable, "-m", "tests.schedules.vision.checked", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(sys.platform == "win32", reason="ends by a signal")
def test_the_check_sees_one_element_too_far() -> None:
    assert run_checked("0").stdout == "inside\n"
    assert run_checked("1").returncode == -signal.SIGSEGV


@pytest.mark.parametrize("sizes", ["some", *in_full("all")])
def test_kernels_stay_inside(sizes: str) -> None:
    finished = run_checked(sizes)
    assert finished.returncode == 0, finished.stderr
