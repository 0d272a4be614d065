"""Throughput: several copies of a model, each with threads of its own, run at once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from tvm_edge.errors import InputError

__all__ = ["Throughput", "measure_throughput"]


@dataclass(frozen=True)
class Throughput:
    """Runs of several copies of a model at once.

    Attributes
    ----------
    runs_per_second : float
        Runs of all copies together.
    frames_per_second : float
        Frames of all copies, by the length of the first input's first axis, the batch.
    median_ms, p90_ms : float
        Latency of a run meanwhile.
    streams : int
        Copies.
    threads : int
        Threads of each copy.
    batch, runs : int
    """

    runs_per_second: float
    frames_per_second: float
    median_ms: float
    p90_ms: float
    streams: int
    threads: int
    batch: int
    runs: int

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.frames_per_second:.1f} frames a second ({self.runs_per_second:.1f} runs of "
            f"batch {self.batch}; latency median {self.median_ms:.3f} ms, p90 {self.p90_ms:.3f}) "
            f"over {self.runs} runs, {self.streams} streams of {self.threads} threads"
        )


def measure_throughput(
    artifact: Path,
    *,
    cpus: Sequence[int],
    cores: int,
    streams: int | None,
    seconds: float,
    warmup: int,
    models: Sequence[str] | None,
) -> Throughput:
    """Run copies of an artifact at once for some seconds.

    Parameters
    ----------
    artifact : Path
        Its weights are mapped once for all copies.
    cpus : sequence of int
        They are dealt out to the copies.
    cores : int
        Threads of all copies together.
    streams : int, optional
        Copies; default one for each core.
    seconds : float
    warmup : int
        Runs of each copy before it counts.
    models : sequence of str, optional
        Those of an artifact with several.

    Raises
    ------
    InputError
        More copies than CPUs.
    """
    import tvm_edge
    from tvm_edge.runtime.inputs import random_inputs

    count = streams or min(cores, len(cpus))
    if count > len(cpus):
        raise InputError(
            f"--streams {count} are more than the {len(cpus)} CPUs that may be used; give at most "
            f"{len(cpus)}",
            name="--streams",
        )
    parts = [list(cpus[number::count]) for number in range(count)]
    threads = max(1, cores // count)
    copies = [tvm_edge.load(artifact, cpus=part, num_threads=threads) for part in parts]
    inputs = random_inputs(copies[0].inputs)
    if models is not None:
        inputs = {n: v for n, v in inputs.items() if n.split("/")[0] in models}
    times = _run_at_once(copies, inputs, models, seconds, warmup)
    took = max(end for each in times for _, end in each) - min(t for each in times for t, _ in each)
    latencies = sorted((end - start) * 1e3 for each in times for start, end in each)
    first = next(iter(inputs.values()))
    batch = int(first.shape[0]) if first.ndim else 1
    rate = len(latencies) / took
    return Throughput(
        rate,
        rate * batch,
        latencies[len(latencies) // 2],
        latencies[int(len(latencies) * 0.9)],
        count,
        threads,
        batch,
        len(latencies),
    )


def _run_at_once(
    copies: Sequence[Any],
    inputs: Mapping[str, Any],
    models: Sequence[str] | None,
    seconds: float,
    warmup: int,
) -> list[list[tuple[float, float]]]:
    """Start and end of each run of each copy, all of which begin together."""
    times: list[list[tuple[float, float]]] = [[] for _ in copies]
    failed: list[BaseException] = []
    together = threading.Barrier(len(copies))

    def work(number: int) -> None:
        try:
            for _ in range(warmup):
                copies[number].run(inputs, models=models)
            together.wait()
            until = perf_counter() + seconds
            while not times[number] or perf_counter() < until:
                start = perf_counter()
                copies[number].run(inputs, models=models)
                times[number].append((start, perf_counter()))
        except BaseException as err:  # it is raised where the command is
            failed.append(err)
            together.abort()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(len(copies))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    reasons = [err for err in failed if not isinstance(err, threading.BrokenBarrierError)]
    if reasons or failed:
        raise (reasons or failed)[0]
    return times
