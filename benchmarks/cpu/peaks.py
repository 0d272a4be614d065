"""Peaks of this CPU: multiply-adds a second, and bytes a second read from memory.

Multiply-adds a second in float32, in registers of the widest vectors; the same with two vectors of
float16 widened in every step of 24, and by products of pairs of bfloat16 (``vdpbf16ps``,
``bfdot``); and bytes a second read from an array of 2 GiB (a quarter of the memory where that is
less), each with one thread and with N. A
small C program (``peaks.c``) that the system's compiler builds here, with ``-march=native``. A
figure is the best of a round's trials, 5 ms and more each: other tenants only take away.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Parser, save_json
from benchmarks.common.text import spread

__all__ = ["build_peaks", "measure_peaks"]

_SOURCE = Path(__file__).with_name("peaks.c")
_FMA_TRIALS = 100
_READ_TRIALS = 8
_MOST_BYTES = 2 << 30
_NO_INSTRUCTION = 3


def build_peaks(folder: str | Path) -> Path:
    """Compile the program into `folder`.

    Raises
    ------
    FileNotFoundError
        No C compiler.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("no C compiler; install gcc, or name one in CC")
    program = Path(folder) / "cpu_peaks"
    flags = ["-O3", "-march=native", "-pthread"]
    subprocess.run([compiler, *flags, _SOURCE, "-o", program], check=True)
    return program


def measure_peaks(program: Path, threads: int) -> dict[str, float]:
    """One measurement: ``fma_gflops`` and ``read_gbs``, in 10**9 a second."""
    size = min(_MOST_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
    return {
        "fma_gflops": max(_trials(program, "fma", threads, _FMA_TRIALS)),
        "read_gbs": max(_trials(program, "read", threads, _READ_TRIALS, size)),
    }


def measure_types(program: Path, threads: int) -> dict[str, float]:
    """``half_gflops`` and ``bf16_gflops``; 0 where the CPU has no such instruction."""
    return {
        f"{kind}_gflops": max(_trials(program, kind, threads, _FMA_TRIALS), default=0.0)
        for kind in ("half", "bf16")
    }


def _trials(program: Path, *arguments: object) -> list[float]:
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == _NO_INSTRUCTION:
        return []
    done.check_returncode()
    return [float(line) for line in done.stdout.split()]


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    from tvm_edge.host import physical_cores

    parser = Parser("cpu_peaks", __doc__)
    parser.shared(threads=physical_cores(), rounds=3, json=None)
    options = parser.parse_args(arguments)
    counts = sorted({1, options.threads})
    samples: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory(prefix="tvm-edge-peaks-") as folder:
        program = build_peaks(folder)
        for _ in range(options.rounds):
            for count in counts:
                peaks = measure_peaks(program, count) | measure_types(program, count)
                samples[count].append(peaks)
    lines = [
        "| threads | FMA, GFLOP/s | float16 widened | pairs of bfloat16 | read, GB/s |",
        "|---|---|---|---|---|",
    ]
    for count, results in samples.items():
        cells = [
            spread([r[f"{kind}_gflops"] for r in results], ".4g")
            for kind in ("fma", "half", "bf16")
        ]
        cells.append(spread([r["read_gbs"] for r in results]))
        lines.append(f"| {count} | {' | '.join(cells)} |")
    machine: dict[str, Any] = describe_machine()
    print(json.dumps(machine, indent=2))
    print("\n".join(lines))
    save_json(options.json, {"machine": machine, "rounds": options.rounds, "peaks": samples})
