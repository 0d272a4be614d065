"""Results of a tuning run."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from tvm_edge.report import LayoutsInfo
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = ["GraphResult", "GroupResult", "Progress", "TaskResult", "TuneResult"]


@dataclass(frozen=True)
class Progress:
    """Progress of a run, after a round.

    Attributes
    ----------
    trials, total : int
        Measured, and to be measured.
    seconds : float
        Since the run began.
    rate : float
        Trials a second.
    remaining : float
        Seconds to go, at this rate.
    tasks : int
    tuned : int
        Tasks for which something faster than the heuristic's choice was found.
    failed : int
        Trials that failed.
    task : str
        The task of the round's largest gain.
    gflops : float
        Its best, in 1e9 floating-point operations a second, as the convolution's definition has
        them.
    network_ms : float
        Milliseconds of all the network's convolutions by the best of each.
    """

    trials: int
    total: int
    seconds: float
    rate: float
    remaining: float
    tasks: int
    tuned: int
    failed: int
    task: str
    gflops: float
    network_ms: float


@dataclass(frozen=True)
class TaskResult:
    """Result of one convolution.

    Attributes
    ----------
    workload : ConvWorkload
    count : int
        Number of times that the network has it.
    trials, failed : int
        Measured, of which failures.
    heuristic : float
        Seconds of the heuristic's choice; infinite if it was not measured or failed.
    best : float
        Seconds of the fastest.
    config : ConvConfig
        The fastest.
    """

    workload: ConvWorkload
    count: int
    trials: int
    failed: int
    heuristic: float
    best: float
    config: ConvConfig

    @property
    def name(self) -> str:
        """Convolution in words."""
        w = self.workload
        kernel = "×".join(map(str, w.kernel))
        dtype = f", {w.dtype}" if w.dtype != "float32" else ""
        size = f"{w.channels}×{w.height}×{w.width} to {w.filters}"
        return f"{size}, {kernel}/{w.strides[0]}{dtype}"

    @property
    def total(self) -> float:
        """Seconds of all of them in a run of the network, before it was tuned."""
        return self.count * (self.heuristic if isfinite(self.heuristic) else self.best)


@dataclass(frozen=True)
class GraphResult:
    """Result of a graph tuner.

    Attributes
    ----------
    info : LayoutsInfo
        The layouts of the least total time, with their expected and measured latency.
    taken : bool
        Whether they were faster, and are kept: ``compile`` takes them from then on.
    nodes, convolutions : int
        Operators of the problem, and those of them that are convolutions with a choice.
    measured : int
        Number of ways to compute these convolutions that were measured.
    solve_seconds : float
    """

    info: LayoutsInfo
    taken: bool
    nodes: int
    convolutions: int
    measured: int
    solve_seconds: float

    def summary(self) -> str:
        """Return a few lines."""
        lines = [f"layouts: {self.info.line()}"]
        lines += [f"  {transform.line()}" for transform in self.info.transforms]
        if not self.taken:
            lines.append("they are not faster than layouts by estimates, and are not kept")
        return "\n".join(lines)


@dataclass(frozen=True)
class GroupResult:
    """Measurement of independent kernels.

    Attributes
    ----------
    kernels : tuple of str
    apart, merged : float or None
        Seconds one after the other, and in one launch by the best order of them; ``None`` where it
        failed.
    error : str
        Class of an error, if there was one.
    """

    kernels: tuple[str, ...]
    apart: float | None
    merged: float | None
    error: str = ""

    @property
    def gains(self) -> bool:
        """True if they are faster as one."""
        return self.apart is not None and self.merged is not None and self.merged < self.apart


@dataclass(frozen=True)
class TuneResult:
    """Result of a run.

    Attributes
    ----------
    model, device : str
    tasks : tuple of TaskResult
    trials, failed : int
    seconds : float
    folder : Path
        Folder of the records.
    interrupted : bool
        Ctrl-C ended it; ``resume=True`` goes on.
    errors : mapping of str to int
        Failures by class.
    graph : GraphResult or None
        Layouts of the whole network, if they were asked for.
    groups : tuple of GroupResult or None
        Groups of independent kernels that were measured, if they were asked for.
    graph_note : str
        Reason why `graph` is not there although layouts were asked for.
    """

    model: str
    device: str
    tasks: tuple[TaskResult, ...]
    trials: int
    failed: int
    seconds: float
    folder: Path
    interrupted: bool
    errors: Mapping[str, int]
    graph: GraphResult | None = None
    groups: tuple[GroupResult, ...] | None = None
    graph_note: str = ""

    def with_more(self, other: TuneResult) -> TuneResult:
        """Add the trials of another run; `other` may go on where this one ended."""
        return replace(
            self,
            trials=self.trials + other.trials,
            failed=self.failed + other.failed,
            seconds=self.seconds + other.seconds,
            interrupted=self.interrupted or other.interrupted,
            errors=dict(Counter(self.errors) + Counter(other.errors)),
        )

    @property
    def heuristic_ms(self) -> float:
        """Milliseconds of the network's convolutions as the heuristic chooses them."""
        return 1e3 * sum(task.count * task.heuristic for task in self.tasks)

    @property
    def best_ms(self) -> float:
        """Milliseconds of the network's convolutions as tuned."""
        return 1e3 * sum(task.count * task.best for task in self.tasks)

    def summary(self) -> str:
        """Return the run in a few lines."""
        speed = self.trials / self.seconds if self.seconds else 0.0
        lines = [
            f"{self.model} on {self.device}: {self.trials} trials of {len(self.tasks)} "
            f"convolutions in {self.seconds:.0f} s ({speed:.1f} a second)"
        ]
        known = [task for task in self.tasks if isfinite(task.best)]
        if known:
            before = 1e3 * sum(task.total for task in known)
            after = 1e3 * sum(task.count * task.best for task in known)
            what = "its convolutions" if len(known) == len(self.tasks) else f"{len(known)} of them"
            lines.append(f"{what} take {after:.3g} ms, {before:.3g} ms before")
        if self.errors:
            counts = ", ".join(f"{name} ×{n}" for name, n in sorted(self.errors.items()))
            lines.append(f"failed: {counts}")
        if self.graph is not None:
            lines.append(self.graph.summary())
        if self.graph_note:
            lines.append(self.graph_note)
        if self.groups is not None:
            lines.append(_groups_line(self.groups))
        lines.append(f"records: {self.folder}")
        if self.interrupted:
            lines.append("interrupted: go on with resume=True (tvm-edge tune --resume)")
        return "\n".join(lines)

    def table(self, top: int | None = None) -> str:
        """Return the slowest convolutions as text; empty if none was measured."""
        from rich.console import Console
        from rich.table import Table

        known = sorted((t for t in self.tasks if isfinite(t.best)), key=lambda task: -task.total)
        if not known:
            return ""
        out = io.StringIO()
        table = Table(box=None, pad_edge=False)
        table.add_column("convolution", overflow="ellipsis", no_wrap=True, max_width=40)
        for column in ("count", "share", "trials", "before µs", "after µs", "speed-up"):
            table.add_column(column, justify="right", no_wrap=True)
        whole = sum(task.total for task in known)
        for task in known[:top]:
            was_measured = isfinite(task.heuristic)
            table.add_row(
                task.name,
                str(task.count),
                f"{task.total / whole:.1%}",
                str(task.trials),
                f"{task.heuristic * 1e6:.1f}" if was_measured else "–",
                f"{task.best * 1e6:.1f}",
                f"{task.heuristic / task.best:.2f}×" if was_measured else "–",
            )
        Console(file=out, width=100, no_color=True, highlight=False).print(table)
        return out.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "model": self.model,
            "device": self.device,
            "trials": self.trials,
            "failed": self.failed,
            "errors": dict(self.errors),
            "seconds": self.seconds,
            "folder": str(self.folder),
            "interrupted": self.interrupted,
            "heuristic_ms": self.heuristic_ms,
            "best_ms": self.best_ms,
            "graph": None if self.graph is None else asdict(self.graph),
            "graph_note": self.graph_note,
            "groups": None
            if self.groups is None
            else [{**asdict(group), "gains": group.gains} for group in self.groups],
            "tasks": [
                {
                    "name": task.name,
                    "count": task.count,
                    "trials": task.trials,
                    "failed": task.failed,
                    "heuristic_us": task.heuristic * 1e6,
                    "best_us": task.best * 1e6,
                    "config": task.config.to_dict(),
                }
                for task in self.tasks
            ],
        }


def _groups_line(groups: Sequence[GroupResult]) -> str:
    if not groups:
        return (
            "no groups of kernels were measured: none on the device is independent, or all have "
            "records"
        )
    gains = [group.apart / group.merged for group in groups if group.apart and group.merged]
    best = f", by up to {max(gains):.2f}×" if gains and max(gains) > 1 else ""
    failed = sum(bool(group.error) for group in groups)
    return (
        f"{sum(group.gains for group in groups)} of {len(groups)} groups of kernels are faster as "
        f"one{best}{f', {failed} failed' if failed else ''}"
    )
