"""Latency of a model, with its spread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np

from tvm_edge.errors import InputError

__all__ = ["BenchmarkResult", "Timing", "check_count", "measure"]


@dataclass(frozen=True)
class Timing:
    """Statistics of repeated measurements, in milliseconds."""

    median: float
    p90: float
    p99: float
    min: float
    max: float
    mean: float

    @classmethod
    def of(cls, milliseconds: list[float]) -> Timing:
        """Summarise samples."""
        samples = np.asarray(milliseconds)
        p50, p90, p99 = np.percentile(samples, [50, 90, 99])
        return cls(
            *(float(v) for v in (p50, p90, p99, samples.min(), samples.max(), samples.mean()))
        )


@dataclass(frozen=True)
class BenchmarkResult:
    """Latency of one run.

    Attributes
    ----------
    device : Timing
        Kernels and what the virtual machine does between them; inputs are in place.
    end_to_end : Timing
        The whole of ``run``: checks and copies of inputs and outputs too.
    repeat, num_threads : int
    """

    device: Timing
    end_to_end: Timing
    repeat: int
    num_threads: int

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary, times in milliseconds."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> BenchmarkResult:
        """The inverse of :meth:`to_dict`."""
        timings = {name: Timing(**fields[name]) for name in ("device", "end_to_end")}
        return cls(**{**fields, **timings})

    def __str__(self) -> str:
        device, whole = self.device, self.end_to_end
        return (
            f"median {whole.median:.3f} ms (min {whole.min:.3f}, p90 {whole.p90:.3f}, "
            f"p99 {whole.p99:.3f}, max {whole.max:.3f}; device {device.median:.3f}) "
            f"over {self.repeat} runs on {self.num_threads} threads"
        )


def check_count(name: str, value: int, least: int) -> None:
    """Refuse a number of runs below `least`.

    Raises
    ------
    InputError
    """
    if not isinstance(value, int) or value < least:
        raise InputError(
            f"{name} is {value}, and must be a whole number of at least {least}",
            name=name,
            expected=f">= {least}",
            got=str(value),
        )


def measure(
    device: Callable[[], Any],
    end_to_end: Callable[[], Any],
    *,
    warmup: int,
    repeat: int,
    num_threads: int,
) -> BenchmarkResult:
    """Time two ways of running the same model, taking turns so that drift hits both."""
    for _ in range(warmup):
        end_to_end()
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeat):
        for times, call in zip(samples, (device, end_to_end), strict=True):
            start = perf_counter()
            call()
            times.append((perf_counter() - start) * 1e3)
    return BenchmarkResult(Timing.of(samples[0]), Timing.of(samples[1]), repeat, num_threads)
