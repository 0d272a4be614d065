"""Profile of a run: the time of each kernel."""

from __future__ import annotations

import io
import json
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

from tvm_edge.files import whole_file, writing
from tvm_edge.report import KernelInfo

__all__ = ["KernelTime", "Profile", "profile_runs"]


@dataclass(frozen=True)
class KernelTime:
    """One kernel launch of a run.

    Attributes
    ----------
    name : str
    operators : tuple[str, ...]
        The user's operators it computes.
    device, origin : str
        Device that it ran on, and source of its schedule.
    start_us, time_us : float
        Microseconds from the start of the run, and the median time over the runs; of a loop's
        body the first start, and the time of all its steps.
    share : float
        Fraction of the run's time.
    gflops, gbs : float
        Achieved arithmetic and memory rates, in 10**9 per second; 0 where unknown.
    """

    name: str
    operators: tuple[str, ...]
    device: str
    origin: str
    start_us: float
    time_us: float
    share: float
    gflops: float
    gbs: float


@dataclass(frozen=True)
class Profile:
    """The launches of one run, in the order of the code; those of a loop's body are added up.

    Attributes
    ----------
    kernels : tuple[KernelTime, ...]
    total_us : float
        Median time of a run under the profiler.
    """

    kernels: tuple[KernelTime, ...]
    total_us: float

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Profile:
        """The inverse of :meth:`to_dict`."""
        kernels = (
            KernelTime(**{**kernel, "operators": tuple(kernel["operators"])})
            for kernel in fields["kernels"]
        )
        return cls(tuple(kernels), fields["total_us"])

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a timeline for ``chrome://tracing`` or Perfetto.

        Raises
        ------
        InputError
            The file cannot be written.
        """
        events = [
            {
                "name": kernel.name,
                "cat": kernel.origin,
                "ph": "X",
                "ts": kernel.start_us,
                "dur": kernel.time_us,
                "pid": 0,
                "tid": kernel.device,
                "args": {"operators": ", ".join(kernel.operators), "GFLOP/s": kernel.gflops},
            }
            for kernel in self.kernels
        ]
        content = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode()
        with writing(Path(path)), whole_file(Path(path), streams=True) as file:
            file.write(content)

    def table(self, top: int | None = None) -> str:
        """Write the launches with the highest latency as text."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        out = io.StringIO()
        table = Table(box=None, pad_edge=False)
        for column, width in (("kernel", 32), ("operators", 40), ("origin", None)):
            table.add_column(column, overflow="ellipsis", no_wrap=True, max_width=width)
        for column in ("µs", "share", "GFLOP/s", "GB/s"):
            table.add_column(column, justify="right", no_wrap=True)
        for kernel in sorted(self.kernels, key=lambda k: -k.time_us)[:top]:
            table.add_row(
                Text(kernel.name),
                Text(", ".join(kernel.operators)),
                kernel.origin,
                f"{kernel.time_us:.1f}",
                f"{kernel.share:.1%}",
                f"{kernel.gflops:.1f}",
                f"{kernel.gbs:.1f}",
            )
        outside = self.total_us - sum(k.time_us for k in self.kernels)
        console = Console(file=out, width=120, no_color=True, highlight=False)
        console.print(table)
        console.print(
            f"{self.total_us / 1e3:.3f} ms a run, {outside / self.total_us:.1%} outside kernels "
            "(the profiler's own cost included)"
        )
        return out.getvalue()


def profile_runs(
    run: Callable[[Callable[[str, bool], None]], Any],
    launches: Sequence[KernelInfo],
    repeat: int,
) -> Profile:
    """Run several times under an instrument and take the median latency of each launch.

    Parameters
    ----------
    run : callable
        Runs the model once, calling its argument with a function's name before (True) and after
        (False) each call of the virtual machine.
    launches : sequence of KernelInfo
        All launches of the code in order: those of each branch, and of the body of a loop once.
    repeat : int
    """
    expected = [kernel.name for kernel in launches]
    names = set(expected)
    runs: list[dict[int, list[tuple[int, int]]]] = []
    totals: list[float] = []
    for _ in range(repeat):
        spans: list[tuple[str, int, int]] = []
        started = 0

        def instrument(name: str, before: bool, spans: list[tuple[str, int, int]] = spans) -> None:
            nonlocal started
            if name not in names:
                return
            if before:
                started = perf_counter_ns()
            else:
                spans.append((name, started, perf_counter_ns()))

        begin = perf_counter_ns()
        run(instrument)
        totals.append((perf_counter_ns() - begin) / 1e3)
        found: dict[int, list[tuple[int, int]]] = {}
        for place, (_, start, end) in zip(
            _places(expected, [name for name, *_ in spans]), spans, strict=True
        ):
            found.setdefault(place, []).append((start - begin, end - start))
        runs.append(found)
    total = median(totals)
    rows = []
    for place in sorted(runs[-1]):
        kernel, last = launches[place], runs[-1][place]
        time_us = median(sum(ns for _, ns in found.get(place, ())) for found in runs) / 1e3
        times = len(last)
        rows.append(
            KernelTime(
                kernel.name,
                kernel.operators,
                kernel.device,
                kernel.origin,
                start_us=last[0][0] / 1e3,
                time_us=time_us,
                share=time_us / total,
                gflops=times * kernel.flops / time_us / 1e3 if time_us else 0.0,
                gbs=times * kernel.bytes / time_us / 1e3 if time_us else 0.0,
            )
        )
    return Profile(tuple(rows), total)


def _places(expected: Sequence[str], seen: Sequence[str]) -> list[int]:
    """Return the place in the compiler's list of each launch of a run.

    A run skips the branches that it does not take, and comes back to the body of a loop.
    """
    of_name: dict[str, list[int]] = {}
    for place, name in enumerate(expected):
        of_name.setdefault(name, []).append(place)
    places, after = [], 0
    for name in seen:
        own = of_name[name]
        at = bisect_left(own, after)
        places.append(own[at] if at < len(own) else own[0])
        after = places[-1] + 1
    return places
