"""Time of a lookup among a million tuning records.

Fills a database of one device with records of ten configurations for each convolution, and asks for
the best of convolutions at random: with the database open, as a compilation has it, and opened for
each lookup. Another line is of the same through :class:`~tvm_edge.records.RecordLibrary`, from the
convolution to the record. Prints one JSON object; times are medians and 99th percentiles, in
milliseconds.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Parser
from tvm_edge.records import (
    Database,
    RecordDevice,
    RecordLibrary,
    TuningRecord,
    Workload,
    store_of,
)

COUNT = 1_000_000
CONFIGS = 10  # of a convolution
LOOKUPS = 2000
DEVICE = RecordDevice("arm/mali-g52", "arm/wave8-local-global", "Arm Mali-G52 MP2", "r32p1")


def workload(number: int) -> Workload:
    """A convolution; each number another one."""
    attributes = {"strides": [1, 1], "padding": [1] * 4, "dilation": [1, 1], "groups": 1}
    shapes = ((1, 64, 56, 56 + number), (64, 64, 3, 3))
    return Workload("conv2d", shapes, "float32", "NCHW", attributes)


def records(count: int) -> Iterator[TuningRecord]:
    """Records of all sizes that a tuner writes."""
    for number in range(count // CONFIGS):
        measured = workload(number)
        for knob in range(CONFIGS):
            yield TuningRecord(
                DEVICE,
                {"kind": "opencl", "max_num_threads": 384, "max_shared_memory_per_block": 32768},
                measured,
                "conv2d.gpu",
                1,
                {"algorithm": "direct", "block": 0, "m": 0, "rows": knob, "columns": 64},
                (1e-3 * (1 + knob), 1.1e-3 * (1 + knob), 0.9e-3 * (1 + knob)),
                "0.27.0.post1",
                "2026-11-22T19:39:33Z",
            )


def times(lookup: Callable[[Workload], object], count: int) -> dict[str, float]:
    """Milliseconds of a lookup of a convolution at random."""
    chosen = random.Random(0).choices(range(count // CONFIGS), k=LOOKUPS)
    taken = []
    for number in chosen:
        wanted = workload(number)
        start = perf_counter()
        lookup(wanted)
        taken.append(1e3 * (perf_counter() - start))
    return {
        "median_ms": round(median(taken), 4),
        "p99_ms": round(quantiles(taken, n=100)[-1], 4),
        "max_ms": round(max(taken), 4),
    }


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("records", __doc__)
    parser.add_argument("count", type=int, nargs="?", default=COUNT, help="records (a million)")
    count = parser.parse_args(arguments).count
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = store_of(folder, DEVICE.key)
        start = perf_counter()
        with Database(path) as database:
            database.add(records(count))
        filled = perf_counter() - start

        def opened(wanted: Workload) -> None:
            with Database(path, readonly=True) as database:
                database.best(wanted, "opencl", 1)

        with Database(path, readonly=True) as database, RecordLibrary(DEVICE, folder) as library:
            measured = {
                "open": times(lambda w: database.best(w, "opencl", 1), count),
                "opened each time": times(opened, count),
                "library": times(lambda w: next(library.candidates(w, "opencl")), count),
            }
        megabytes = round(path.stat().st_size / 1e6)
    print(
        json.dumps(
            {
                "machine": describe_machine(),
                "records": count,
                "database_mb": megabytes,
                "fill_s": round(filled, 1),
                "lookup": measured,
            },
            indent=2,
        )
    )
