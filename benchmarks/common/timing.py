"""Times of runs and calls: by the host's clock, and by the device's timer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

__all__ = [
    "CALLS",
    "EVENT_ROUNDS",
    "evaluate",
    "host_us",
    "machine_us",
    "open_machine",
    "timed_runs",
    "torch_us",
]

CALLS = 100
"""Between two events."""
EVENT_ROUNDS = 5
"""The median of which is a process's figure."""

_WARM_UP = 0.2  # seconds
_LEAST_RUNS, _MOST_RUNS = 5, 5000


def timed_runs(run: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of each of the runs made in `seconds`, at least 5 and at most 5000."""
    samples: list[float] = []
    begin = perf_counter()
    while len(samples) < _LEAST_RUNS or (
        len(samples) < _MOST_RUNS and perf_counter() - begin < seconds
    ):
        start = perf_counter()
        run()
        samples.append(perf_counter() - start)
    return samples


def host_us(run: Callable[[], Any], seconds: float, warm_up: float = _WARM_UP) -> float:
    """Median microseconds of the runs made in `seconds`, after a warm-up as long as given."""
    timed_runs(run, warm_up)
    return median(timed_runs(run, seconds)) * 1e6


def evaluate(evaluator: Callable[..., Any], *args: Any) -> float:
    """Microseconds of a call by TVM's timer of the device."""
    return median(evaluator(*args).results) * 1e6


def open_machine(path: Path) -> tuple[Any, Any]:
    """TVM's virtual machine of an artifact, and its weights where it wants them."""
    import tvm
    import tvm_ffi
    from tvm.runtime.vm import VirtualMachine

    from tvm_edge.runtime.artifact import read_artifact
    from tvm_edge.runtime.devices import open_device
    from tvm_edge.runtime.info import read_info

    artifact = read_artifact(path)
    plan = read_info(artifact).devices
    devices = [open_device(kind) for kind in plan.kinds]
    weights = zip(artifact.weights, plan.weights, strict=True)
    # TVM appends the CPU by itself.
    own = [device.handle for device in devices if not device.is_host]
    machine = VirtualMachine(artifact.module(), own or tvm.cpu())
    return machine, tvm_ffi.Array([w.copyto(devices[d].handle) for w, d in weights])


def machine_us(path: Path, target: str, inputs: Mapping[str, Any], calls: int = CALLS) -> float:
    """Microseconds of a call of an artifact's ``main`` in TVM's virtual machine, by the device.

    Parameters
    ----------
    path : Path
        Of the artifact, all of which runs on `target`.
    target : {"cuda", "opencl"}
    inputs : mapping of str to tvm.runtime.Tensor
        In the model's order, on the device.
    calls : int
        Between two events.
    """
    import tvm

    device = tvm.device(target, 0)
    machine, weights = open_machine(path)
    evaluator = machine.time_evaluator("main", device, number=calls, repeat=EVENT_ROUNDS)
    return evaluate(evaluator, *inputs.values(), weights)


def torch_us(call: Callable[[], Any], calls: int = CALLS) -> float:
    """Microseconds of a call of PyTorch's, by CUDA's events around `calls` of them."""
    import torch

    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(EVENT_ROUNDS):
        start.record()
        for _ in range(calls):
            call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / calls)
    return median(times)
