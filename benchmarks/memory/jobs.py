"""Jobs of ``benchmarks.memory.networks``: compile, load and run, check."""

from __future__ import annotations

import sys
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.correctness import compare_outputs, write_reference
from benchmarks.common.processes import Job
from benchmarks.memory import nvml

__all__ = ["JOBS", "NO_BUDGET"]

NO_BUDGET = "none"

_LEAST_FRAMES = 3
_ENERGY_SECONDS = 2.0
# On pocl everything would be left to the CPU by cost: it is what pocl runs on.
_FALLBACK = {"opencl": "list"}


def _compile(name: str, target: str, budget: str, folder: Path) -> dict[str, Any]:
    """Compile within a budget; what does not fit says what would."""
    import tvm_edge

    start = perf_counter()
    try:
        model = tvm_edge.compile(
            folder / f"{name}.onnx",
            target,
            fallback=_FALLBACK.get(target, "auto"),
            memory_budget=None if budget == NO_BUDGET else budget,
        )
    except tvm_edge.MemoryBudgetError as err:
        return {"refused": str(err), "smallest": err.smallest_feasible}
    path = _exported(model, folder / f"{name}.{target}.{budget}.tvme")
    return {"seconds": perf_counter() - start, **_described(model), "file": path.stat().st_size}


def _compile_plan(name: str, target: str, plan: str, folder: Path) -> dict[str, Any]:
    """Compile by one of the planner's plans, whatever the others are."""
    from tvm_edge.compiler.driver import compile_with
    from tvm_edge.frontend import load_model
    from tvm_edge.hardware import resolve_target
    from tvm_edge.memory.plans import possible

    start = perf_counter()
    imported = load_model(folder / f"{name}.onnx")
    resolved = resolve_target(target)
    plans = possible(
        imported.nodes,
        beside_cpu=resolved.host is not None,
        unified=resolved.spec.unified_memory,
        offload=True,
    )
    way, missing = next((p, why) for p, why in plans if p.name == plan)
    if missing:
        return {"missing": missing}
    model = compile_with(
        imported,
        target,
        {},
        fallback=_FALLBACK.get(target, "auto"),
        tuning_logs=None,
        way=way,
    )
    _exported(model, folder / f"{name}.{target}.plan.tvme")
    return {"seconds": perf_counter() - start, **_described(model)}


def _exported(model: Any, path: Path) -> Path:
    on_opencl = any(kernel.device == "opencl" for kernel in model.report.kernels)
    found: Path = model.export(path, embed_programs=on_opencl)
    return found


def _described(model: Any) -> dict[str, Any]:
    from tvm_edge.compiler.budget import bytes_of_frame

    memory = model.report.memory
    found = model.report.to_dict()["memory"]
    return {
        "predicted": memory.peak,
        "frame": bytes_of_frame(model.report),  # of each further one of a stream
        "parts": {key: found[key] for key in found if key not in ("over_time", "plans")},
        "plans": found["plans"],
        "streamed": len(model.report.splits),
        "largest part": max(
            (split.part_bytes for split in model.report.splits if split.device != "llvm"), default=0
        ),
        "placement": model.report.placement_line(),
    }


def _run(
    artifact: str,
    inputs: str,
    frames: str,
    seconds: str,
    pipelined: str,
    copies: str,
    _folder: Path,
) -> dict[str, Any]:
    """Load and run, with nothing else in the process; outputs go beside the artifact."""
    # tvm_ffi imports it where it is installed: 160 MiB that are not ours.
    sys.modules["torch"] = None
    import tvm  # noqa: F401  its import loads the runtime of OpenCL
    import tvm_ffi

    import tvm_edge

    if copies == "True":  # the runtime, which is C++, finds the function by its name
        tvm_ffi.register_global_func("tvm_edge.opencl.borrow", lambda *_: None, override=True)

    start = perf_counter()
    model = tvm_edge.load(artifact)
    loaded = perf_counter() - start
    values = dict(np.load(inputs))
    start = perf_counter()
    if pipelined == "True":  # alone: runs have activations of their own beside a stream's
        with model.stream([values]) as stream:
            outputs = next(stream)
    else:
        outputs = model.run(values)
    first = perf_counter() - start

    def work(least: int, most: float, seconds: float) -> list[float]:
        """When the first frame began, and each ended."""
        ends = [perf_counter()]

        def more() -> bool:
            count = len(ends) - 1
            return count < most and (count < least or ends[-1] - ends[0] < seconds)

        if pipelined == "True":

            def source() -> Any:
                while more():
                    yield values

            with model.stream(source()) as stream:
                for _ in stream:
                    ends.append(perf_counter())
        else:
            while more():
                model.run(values)
                ends.append(perf_counter())
        return ends

    ends = work(_LEAST_FRAMES, int(frames), float(seconds))
    times = [b - a for a, b in pairwise(ends)] or [first]
    # Of a stream the mean: its frames come in pairs.
    typical = sum(times) / len(times) if pipelined == "True" else median(times)
    joules: float | str = "not measured"
    before = nvml.energy_joules()
    if before is not None and len(ends) > 1:
        # By itself: the driver's counter stands still for longer than some frames take.
        count = len(work(1, inf, _ENERGY_SECONDS)) - 1
        joules = ((nvml.energy_joules() or before) - before) / count
    np.savez(f"{artifact}.npz", **outputs)
    return {
        "load_seconds": loaded,
        "first_seconds": first,
        "seconds": typical,
        "frames": len(ends) - 1,
        "joules": joules,
        "outputs": {
            name: float(np.abs(value).astype("float64").sum()) for name, value in outputs.items()
        },
    }


def _check(name: str, outputs: str, folder: Path) -> dict[str, Any]:
    """Compare what a run wrote with ONNX Runtime's outputs."""
    expected = dict(np.load(folder / f"{name}.expected.npz"))
    return compare_outputs(dict(np.load(outputs)), expected, folder / f"{name}.onnx")


def _empty(target: str, layers: str, folder: Path) -> dict[str, Any]:
    """A model of no size, of so many kernels: chains of small convolutions."""
    from onnx import TensorProto, helper, numpy_helper, save

    import tvm_edge

    count = int(layers)
    weights = [
        # Kernels of other sizes, so that each is a kernel of its own.
        numpy_helper.from_array(np.full((8 + i, 8 + i - (i > 0), 3, 3), 0.01, "float32"), f"w{i}")
        for i in range(count)
    ]
    nodes = [
        helper.make_node("Conv", [f"t{i}", f"w{i}"], [f"t{i + 1}"], pads=[1] * 4, name=f"c{i}")
        for i in range(count)
    ]
    one = helper.make_tensor_value_info("t0", TensorProto.FLOAT, (1, 8, 8, 8))
    last = helper.make_tensor_value_info(f"t{count}", TensorProto.FLOAT, (1, 7 + count, 8, 8))
    graph = helper.make_graph(nodes, "empty", [one], [last], weights)
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "empty.onnx")
    np.savez(folder / "empty.npz", t0=np.zeros((1, 8, 8, 8), "float32"))
    model = tvm_edge.compile(folder / "empty.onnx", target, fallback="none", tuning_logs=False)
    _exported(model, folder / f"empty{count}.tvme")
    return {"kernels": len({kernel.name for kernel in model.report.kernels}), **_described(model)}


JOBS: dict[str, Job] = {
    "network": write_reference,
    "compile": _compile,
    "compile_plan": _compile_plan,
    "run": _run,
    "check": _check,
    "empty": _empty,
}
