"""Streams of frames on two devices, beside frames one after the other.

**Throughput.** A chain of convolutions, the first of them on the GPU and the others on the CPU, so
many of each that both take as long: the split is chosen by a first measurement, and the balance
that came of it is stated. Frames through ``CompiledModel.run``, one after the other, and through
``stream``, ``--rounds`` times in turn in one process; medians with spread, outputs compared with
ONNX Runtime's. What they are held to is 1 / the longer stage: both devices run their stages over
and over at the same time, under the same pinning, each on a frame of its own, for as long as each
other. The bars: ``stream`` at 0.95 of that or more, and at 1.5 of ``run`` where the stages balance
within 1.5 (the paper, Rallapalli et al. 2016, Table 1, "Pipeline" beside "CPU Offload": 1.7).

With ``--target opencl`` on a CPU, pocl has one core and TVM's kernels, with the Python around them,
another (POCL_AFFINITY, POCL_MAX_PTHREAD_COUNT, the process's own affinity). A GPU needs no pinning.

**Memory.** Anonymous and shared memory of a process that streams 10,000 frames of a small model,
after the first thousand and at the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.correctness import TOLERANCE
from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Among, Parser, save_json
from benchmarks.common.process_memory import counted_bytes
from benchmarks.common.processes import Job, require_child
from benchmarks.common.text import spread

_PARTS = ("throughput", "memory")
_TVM_CPU = 1  # pocl's first thread goes to CPU 0
_MEMORY_FRAMES = (1_000, 10_000)


# ------------------------------------------------------------------ what the child processes do


def _chain(layers: int, channels: int, side: int) -> Any:
    """Convolutions ``conv<i>``, each with a ReLU, one after the other."""
    from onnx import helper

    from tests.onnx_models import make_model

    generator = np.random.default_rng(0)
    nodes, weights, value = [], {}, "data"
    for index in range(layers):
        filters = generator.standard_normal((channels, channels, 3, 3))
        weights[f"w{index}"] = (filters * (2 / (9 * channels)) ** 0.5).astype("float32")
        nodes += [
            helper.make_node(
                "Conv", [value, f"w{index}"], [f"c{index}"], f"conv{index}", pads=[1] * 4
            ),
            helper.make_node("Relu", [f"c{index}"], [f"r{index}"], f"relu{index}"),
        ]
        value = f"r{index}"
    return make_model(nodes, {"data": (1, channels, side, side)}, [value], weights)


def _image(channels: int, side: int) -> np.ndarray:
    generator = np.random.default_rng(1)
    return generator.standard_normal((1, channels, side, side)).astype("float32")


def _compile(
    layers: str, channels: str, side: str, on_cpu: str, target: str, folder: Path
) -> dict[str, Any]:
    """An artifact with the last layers on the CPU, and what ONNX Runtime makes of an image."""
    import tvm_edge
    from tests.onnx_models import reference

    graph = _chain(int(layers), int(channels), int(side))
    first = int(layers) - int(on_cpu)
    names = [f"{kind}{i}" for i in range(first, int(layers)) for kind in ("conv", "relu")]
    # Several threads choose other schedules, so TVM_NUM_THREADS of this process is the child's.
    model = tvm_edge.compile(graph, target, fallback=names)
    model.export(folder / "chain.tvme")
    (expected,) = reference(graph, {"data": _image(int(channels), int(side))}).values()
    np.save(folder / "expected.npy", expected)
    return {"partitions": list(model.report.partitions)}


def _load(pinned: str, folder: Path) -> Any:
    """The model, warm; with TVM's threads, which inherit it, on a core of their own if `pinned`."""
    if pinned == "pinned":
        os.sched_setaffinity(0, {_TVM_CPU})
    import tvm_edge

    model = tvm_edge.load(folder / "chain.tvme")
    model.warmup()
    return model


def _stages(pinned: str, channels: str, side: str, seconds: str, folder: Path) -> dict[str, Any]:
    """Seconds of the stages of each device, while the other runs its own."""
    model = _load(pinned, folder)
    return {"seconds": _stage_seconds(model, _image(int(channels), int(side)), float(seconds))}


def _stage_seconds(model: Any, image: np.ndarray, seconds: float) -> dict[str, float]:
    stream = model.stream([])
    steps = stream._steps
    # What each stage takes, of a frame of each device's own.
    given: dict[str, list[tuple[Any, Any]]] = {}
    for device in {step.device for step in steps}:
        state: Any = [image.copy()]
        for step in steps:
            if step.device == device:
                given.setdefault(device, []).append((step.run, state))
            step.start()
            state = step.run(state)
    begin = threading.Barrier(len(given))
    found = {}

    def repeat(device: str) -> None:
        for step in steps:
            if step.device == device:
                step.start()
        begin.wait()
        start, count = perf_counter(), 0
        while (now := perf_counter()) - start < seconds:
            for run, state in given[device]:
                run(state)
            count += 1
        found[device] = (now - start) / count

    threads = [threading.Thread(target=repeat, args=(device,)) for device in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _throughput(
    pinned: str,
    channels: str,
    side: str,
    seconds: str,
    rounds: str,
    depths: str,
    folder: Path,
) -> dict[str, Any]:
    """Frames a second by ``run`` and by ``stream``, and seconds of the stages, round by round."""
    model = _load(pinned, folder)
    image = _image(int(channels), int(side))
    frame = {"data": image}
    (expected,) = (np.load(folder / "expected.npy"),)
    scale, errors = float(np.abs(expected).max()), []
    found: dict[str, Any] = {"run": [], "stages": []}

    def rate(outputs: Any) -> float:
        """Frames a second of an endless source, from the third frame on."""
        count, start, now = 0, perf_counter(), 0.0
        each: dict[str, np.ndarray] = {}
        for count, each in enumerate(outputs, -2):  # noqa: B007  the last is checked
            now = perf_counter()
            if count == 0:
                start = now
            elif now - start >= float(seconds):
                break
        (value,) = each.values()
        errors.append(float(np.abs(value - expected).max()) / scale)
        return count / (now - start)

    for _ in range(int(rounds)):
        found["stages"].append(_stage_seconds(model, image, float(seconds)))
        found["run"].append(rate(map(model.run, itertools.repeat(frame))))
        for depth in map(int, depths.split(",")):
            with model.stream(itertools.repeat(frame), depth) as stream:
                found.setdefault(f"stream {depth}", []).append(rate(stream))
    return {**found, "error": max(errors), "stage_devices": list(stream.stages)}


def _memory(pinned: str, folder: Path) -> dict[str, Any]:
    """KiB of anonymous and shared memory after so many frames, and the frames' rate."""
    model = _load(pinned, folder)
    (spec,) = model.inputs
    frame = {spec.name: np.ones(spec.typical_shape, "float32")}
    before, after = _MEMORY_FRAMES
    found = {}
    start = perf_counter()
    for number, _ in enumerate(model.stream(itertools.repeat(frame, after), 3), 1):
        if number in (before, after):
            found[str(number)] = counted_bytes() >> 10
    return {"kib": found, "frames_per_second": after / (perf_counter() - start)}


JOBS: dict[str, Job] = {
    "compile": _compile,
    "stages": _stages,
    "throughput": _throughput,
    "memory": _memory,
}


# ------------------------------------------------------------------ the benchmark


def _child(options: argparse.Namespace, *arguments: object) -> dict[str, Any]:
    environment = {"TVM_NUM_THREADS": str(options.threads)}
    if options.pinned:
        environment |= {"POCL_AFFINITY": "1", "POCL_MAX_PTHREAD_COUNT": "1"}
    return require_child(__name__, *arguments, **environment)


def _measure_throughput(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    pinned = "pinned" if options.pinned else "free"
    shape = (options.channels, options.side)
    layers, on_cpu = options.layers, options.layers // 2
    compiled = partial(_child, options, "compile", layers, *shape)
    compiled(on_cpu, options.target, folder)
    seconds = _child(options, "stages", pinned, *shape, options.seconds, folder)["seconds"]
    cpu = seconds["llvm"] / on_cpu
    gpu = seconds[options.target] / (layers - on_cpu)
    on_cpu = min(max(round(layers * gpu / (gpu + cpu)), 1), layers - 1)
    partitions = compiled(on_cpu, options.target, folder)["partitions"]
    depths = ",".join(map(str, options.depths))
    found = _child(
        options, "throughput", pinned, *shape, options.seconds, options.rounds, depths, folder
    )
    return {**found, "on_cpu": on_cpu, "layers": layers, "partitions": partitions}


def _throughput_lines(found: dict[str, Any]) -> list[str]:
    stages = {
        device: [row[device] * 1e3 for row in found["stages"]] for device in found["stages"][0]
    }
    middle = {device: median(times) for device, times in stages.items()}
    bound, balance = 1e3 / max(middle.values()), max(middle.values()) / min(middle.values())
    run = median(found["run"])
    lines = [
        f"{found['layers']} convolutions, {found['on_cpu']} of them on the CPU; stages "
        + ", ".join(f"{device} {spread(times, ',.2f')} ms" for device, times in stages.items())
        + f"; balance {balance:.2f}; error {found['error']:.1e} "
        + ("(right)" if found["error"] <= TOLERANCE else "(WRONG)"),
        "",
        "| | frames / s | of 1 / longest stage | of run |",
        "|---" * 4 + "|",
        f"| 1 / longest stage | {bound:,.1f} | 1 | {bound / run:.2f} |",
    ]
    for name in found:
        if name == "run" or name.startswith("stream"):
            rate, cell = median(found[name]), spread(found[name], ",.2f")
            lines.append(f"| {name} | {cell} | **{rate / bound:.3f}** | {rate / run:.2f} |")
    return lines


def _measure_memory(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    _child(options, "compile", 4, 8, 12, 2, options.target, folder)
    return _child(options, "memory", "pinned" if options.pinned else "free", folder)


def _memory_line(found: dict[str, Any]) -> str:
    (before, first), (after, last) = found["kib"].items()
    return (
        f"{first:,} KiB after {before} frames, {last:,} KiB after {after}: {last - first:+,} KiB; "
        f"{found['frames_per_second']:,.0f} frames / s"
    )


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = Parser("pipeline", __doc__)
    parser.shared(target=Among("opencl", ("opencl", "cuda")), part=Among(_PARTS, _PARTS))
    parser.shared(rounds=7, seconds=2.0, threads=1, json=None)
    parser.add_argument("--layers", type=int, default=24, help="convolutions of the chain")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--side", type=int, default=56)
    parser.add_argument("--depths", type=int, nargs="+", default=(2, 3, 4))
    parser.add_argument(
        "--free", dest="pinned", action="store_false", help="do not pin anything (a real GPU)"
    )
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {"machine": describe_machine(), "target": options.target}
    print(json.dumps(found["machine"]))
    with tempfile.TemporaryDirectory() as folder:
        if "throughput" in options.part:
            found["throughput"] = _measure_throughput(options, Path(folder))
            print("\n".join(_throughput_lines(found["throughput"])), flush=True)
        if "memory" in options.part:
            found["memory"] = _measure_memory(options, Path(folder))
            print(_memory_line(found["memory"]), flush=True)
    save_json(options.json, found)
