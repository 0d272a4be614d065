"""Times of operators by how they are launched: one by one, merged, concurrently, in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.timing import EVENT_ROUNDS, evaluate, open_machine, torch_us

__all__ = ["time_row", "why_not_captured"]

_CALLS = 20  # between two events, and in a CUDA graph
_ROUNDS = 5

# What the host reads of kernels' results, which are not there while launches are only captured.
_READ = {
    "vm.builtin.tensor_to_shape": "a shape depends on data",
    "vm.builtin.read_if_cond": "a branch depends on data",
}

Members = list[tuple[Path, list[Any]]]
"""Artifacts with their inputs on their devices."""


def time_row(row: str, names: list[str], target: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Microseconds of a call of each variant, in turn: launch by launch, on CUDA in a graph, too.

    Those named ``only…`` are members, which run at the same time as ``concurrent``.
    """
    alone = [f"{row}.{name}" for name in names if name.startswith("only")]
    makers: list[tuple[str, str, Callable[[], Callable[[], float]]]] = []
    for name in names:
        if not name.startswith("only"):
            opened = _opened([f"{row}.{name}"], folder)
            makers.append(("stream", name, partial(_stream_timer, opened, target)))
            if target == "cuda":
                makers.append(("graph", name, partial(_graph_timer, opened)))
    if len(alone) > 1:
        opened = _opened(alone, folder)
        if target == "cuda":
            makers.append(("stream", "concurrent", partial(_streams_timer, opened)))
            makers.append(("graph", "concurrent", partial(_graph_timer, opened)))
        else:
            makers.append(("stream", "concurrent", partial(_queues_timer, opened)))
    us: dict[str, dict[str, list[float]]] = {}
    failed: dict[str, str] = {}
    timers = []
    for how, name, make in makers:
        try:
            timers.append((how, name, make()))
        except RuntimeError as error:  # TVM's and PyTorch's of the device
            failed[f"{how} {name}"] = _first_reason(error)
    for _ in range(rounds):
        for how, name, timer in timers:
            us.setdefault(how, {}).setdefault(name, []).append(timer())
    return {"us": us, "not timed": failed}


def _opened(keys: list[str], folder: Path) -> Members:
    import tvm

    from tvm_edge.runtime.artifact import read_artifact
    from tvm_edge.runtime.devices import open_device
    from tvm_edge.runtime.info import read_info

    found = []
    for key in keys:
        path = folder / f"{key}.tvme"
        plan = read_info(read_artifact(path)).devices
        devices = [open_device(kind).handle for kind in plan.kinds]
        with np.load(path.with_suffix(".npz")) as file:
            placed = zip(file.files, plan.inputs, strict=True)
            inputs = [tvm.runtime.tensor(file[name], devices[d]) for name, d in placed]
        found.append((path, inputs))
    return found


def why_not_captured(path: Path) -> str:
    """Reason that keeps an artifact's runs out of a CUDA graph; empty if there is none."""
    from tvm_edge.runtime.artifact import read_artifact
    from tvm_edge.runtime.info import read_info

    artifact = read_artifact(path)
    if len(read_info(artifact).devices.kinds) > 1:
        return "a part runs on the CPU"
    code = artifact.module()["as_text"]()
    return next((reason for function, reason in _READ.items() if function in code), "")


def _first_reason(error: BaseException) -> str:
    """Error that broke a capture, not the one at its end."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error)[-200:]


def _calls(members: Members, *, recorded: bool = True) -> list[Callable[[], Any]]:
    """A call of each member; without `recorded` CUDA graphs of its own kernel by kernel."""
    from tvm_edge.runtime.entry import ALL, KERNEL_BY_KERNEL

    found: list[Callable[[], Any]] = []
    for path, inputs in members:
        machine, weights = open_machine(path)
        main = machine[ALL if recorded else KERNEL_BY_KERNEL]
        found.append(partial(main, *inputs, weights))
    return found


def _side_by_side(calls: list[Callable[[], Any]]) -> Callable[[], None]:
    """All calls, each on a CUDA stream of its own where there are several, and their joint end."""
    import torch
    import tvm
    import tvm_ffi

    device = tvm.device("cuda", 0)
    streams = [torch.cuda.Stream() for _ in calls[1:]]

    def run() -> None:
        first = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(first)
        for stream, call in zip([first, *streams], calls, strict=True):
            with tvm_ffi.use_raw_stream(device, stream.cuda_stream):
                call()
        for stream in streams:
            first.wait_stream(stream)

    return run


def _stream_timer(members: Members, target: str) -> Callable[[], float]:
    """Microseconds of a call, launch by launch, by the device's timer."""
    import tvm

    ((path, inputs),) = members
    device = tvm.device(target, 0)
    machine, weights = open_machine(path)
    evaluator = machine.time_evaluator("main", device, number=_CALLS, repeat=EVENT_ROUNDS)
    return lambda: evaluate(evaluator, *inputs, weights)


def _graph_timer(members: Members) -> Callable[[], float]:
    """Microseconds inside a CUDA graph of some calls one after the other.

    Several members are branches of it.
    """
    import torch

    for path, _ in members:
        if reason := why_not_captured(path):
            raise RuntimeError(f"not in a graph: {reason}")
    # A stream that is captured takes no launch of a graph, and a machine records what it can.
    run = _side_by_side(_calls(members, recorded=False))
    run()  # memory that the first call takes is kept for the next
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Relaxed: the first call in a graph may still take memory of the device.
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        for _ in range(_CALLS):
            run()
    graph.replay()

    def us(_modules: object = run) -> float:  # the graph's kernels live as long as their modules
        return torch_us(graph.replay, 10) / _CALLS

    return us


def _streams_timer(members: Members) -> Callable[[], float]:
    run = _side_by_side(_calls(members))
    run()
    return lambda: torch_us(run, _CALLS)


def _queues_timer(members: Members) -> Callable[[], float]:
    """Microseconds of members on OpenCL queues of their own, by the host's clock."""
    import tvm

    device, calls = tvm.device("opencl", 0), _calls(members)
    first = device.create_raw_stream()
    queues = [first, *(device.create_raw_stream() for _ in calls[1:])]

    def seconds() -> float:
        start = perf_counter()
        for _ in range(_CALLS):
            for queue, call in zip(queues, calls, strict=True):
                device.set_raw_stream(queue)
                call()
        for queue in queues:
            device.sync(queue)
        return (perf_counter() - start) / _CALLS

    seconds()
    return lambda: median(seconds() for _ in range(_ROUNDS)) * 1e6
