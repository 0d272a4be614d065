"""The most that this CPU can do: ``python -m benchmarks.cpu_peaks [--threads N] [--json FILE]``.

Multiply-adds a second in float32, in registers of the widest vectors, and bytes a second read from
an array of 2 GiB (a quarter of the memory where that is less), each with one thread and with N. A
small C program (``cpu_peaks.c``) that the system's compiler builds here, with ``-march=native``. A
figure is the best of a round's trials, 5 ms and more each: other tenants only take away.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import describe_machine

__all__ = ["build_peaks", "measure_peaks", "spread"]

_SOURCE = Path(__file__).with_name("cpu_peaks.c")
_FMA_TRIALS = 100
_READ_TRIALS = 8
_MOST_BYTES = 2 << 30


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


def _trials(program: Path, *arguments: object) -> list[float]:
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Median and range, for a table."""
    low, middle, high = (f"{v:.{digits}g}" for v in (min(values), median(values), max(values)))
    return f"{middle} [{low}–{high}]"


def main() -> None:
    from tvm_edge.host import physical_cores

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    counts = sorted({1, options.threads})
    samples: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory(prefix="tvm-edge-peaks-") as folder:
        program = build_peaks(folder)
        for _ in range(options.rounds):
            for count in counts:
                samples[count].append(measure_peaks(program, count))
    lines = ["| threads | FMA, GFLOP/s | read, GB/s |", "|---|---|---|"]
    for count, results in samples.items():
        fma = spread([r["fma_gflops"] for r in results], 4)
        lines.append(f"| {count} | {fma} | {spread([r['read_gbs'] for r in results])} |")
    machine: dict[str, Any] = describe_machine()
    print(json.dumps(machine, indent=2))
    print("\n".join(lines))
    if options.json:
        content = {"machine": machine, "rounds": options.rounds, "peaks": samples}
        options.json.write_text(json.dumps(content, indent=2))


if __name__ == "__main__":
    main()
