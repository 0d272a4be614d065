"""Very deep networks in little memory: ``python -m benchmarks.memory``.

Tables 1, 2 and 4 of Rallapalli et al., "Are Very Deep Neural Networks Feasible on Mobile Devices?",
for YOLOv1 (original, medium, small, large), VGG16 and VGG19.

**Budgets.** Each network with no budget and with 1 GiB, 512 MiB and 256 MiB: the plan that was
taken, the predicted peak, the measured one, and the time of a frame (the median of ``--frames``,
25 in the paper, behind one that warms up). Every compilation and every run has a process of its
own; the latter loads the artifact on TVM's runtime tier and nothing else. Its peak is anonymous and
shared memory, sampled every 2 ms, and what the GPU's memory in use grows by (NVML). Bars: the peak
is within the budget, and within 10 % of the prediction.

**Limits.** The same artifact in a process that a control group of the budget's size limits, the
pages of the mapped weights included, which it has to evict; beside it the artifact that was
compiled without a budget.

**Strategies.** Each plan by itself, whatever fits (Tables 1 and 2): as is (the paper's GPU, or its
CPU on ``llvm``), no Winograd, FC on the CPU, the same with ``stream`` if the version has it, FC
split. Energy of a frame by NVML, "not measured" where there is none.

**Layers.** Table 4: all memory, and the share of the fully connected layers.

``--networks``, ``--targets llvm,opencl,cuda``, ``--budgets none,1GiB,…``, ``--part budgets``,
``strategies`` or ``layers``, ``--folder`` to keep the ONNX files, ``--json FILE``; ``--floor``
measures the constants of ``tvm_edge/memory/floor.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import nvml
from benchmarks.limited import Limit, limited
from benchmarks.machine import describe_machine
from benchmarks.processes import Job, is_child, run_child, serve

NETWORKS = ("yolov1", "yolov1_medium", "yolov1_small", "yolov1_large", "vgg16", "vgg19")
TARGETS = ("llvm", "opencl", "cuda")
BUDGETS = ("none", "1GiB", "512MiB", "256MiB")
TOLERANCE = 0.1

_MODULE = "benchmarks.memory"
_TIMEOUT = 1800.0
_NONE = "none"
_ALONE = {"TVM_USE_RUNTIME_LIB": "1", "TVM_EDGE_OPENCL_CACHE": "0"}
# On pocl everything would be left to the CPU by cost: it is what pocl runs on.
_FALLBACK = {"opencl": "list"}


# ------------------------------------------------------------------ what the child processes do


def _network(name: str, folder: Path) -> dict[str, Any]:
    from tvm_edge import zoo

    path = folder / f"{name}.onnx"
    if not path.exists():
        zoo.save(name, path)
    np.savez(folder / f"{name}.npz", **zoo.sample_input(name))
    return {}


def _compile(name: str, target: str, budget: str, folder: Path) -> dict[str, Any]:
    """Compile within a budget; what does not fit says what would."""
    import tvm_edge

    start = perf_counter()
    try:
        model = tvm_edge.compile(
            folder / f"{name}.onnx",
            target,
            fallback=_FALLBACK.get(target, "auto"),
            memory_budget=None if budget == _NONE else budget,
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

    nodes = load_model(folder / f"{name}.onnx").nodes
    resolved = resolve_target(target)
    plans = possible(
        nodes,
        beside_cpu=resolved.host is not None,
        unified=resolved.spec.unified_memory,
        offload=True,
    )
    way, missing = next((p, why) for p, why in plans if p.name == plan)
    if missing:
        return {"missing": missing}
    model = compile_with(
        folder / f"{name}.onnx",
        target,
        {},
        fallback=_FALLBACK.get(target, "auto"),
        tuning_logs=None,
        way=way,
    )
    _exported(model, folder / f"{name}.{target}.plan.tvme")
    return {**_described(model), "pipelined": way.pipelined}


def _exported(model: Any, path: Path) -> Path:
    on_opencl = any(kernel.device == "opencl" for kernel in model.report.kernels)
    found: Path = model.export(path, embed_programs=on_opencl)
    return found


def _described(model: Any) -> dict[str, Any]:
    memory = model.report.memory
    found = model.report.to_dict()["memory"]
    return {
        "predicted": memory.peak,
        "parts": {key: found[key] for key in found if key not in ("over_time", "plans")},
        "plans": found["plans"],
        "placement": model.report.placement_line(),
    }


def _run(
    artifact: str, inputs: str, frames: str, pipelined: str, copies: str, _folder: Path
) -> dict[str, Any]:
    """Load and run, with nothing else in the process."""
    # tvm_ffi imports it where it is installed: 160 MiB that are not ours.
    sys.modules["torch"] = None  # type: ignore[assignment]
    import tvm_edge
    from tvm_edge import opencl

    if copies == "True":
        opencl.borrow = lambda *_: None

    model = tvm_edge.load(artifact)
    values = dict(np.load(inputs))
    start = perf_counter()
    outputs = model.run(values)
    first = perf_counter() - start
    energy = nvml.energy_joules()
    times = []
    begin = perf_counter()
    if pipelined == "True":
        for _ in model.stream([values] * int(frames)):
            pass
        times.append((perf_counter() - begin) / int(frames))
    else:
        for _ in range(int(frames)):
            start = perf_counter()
            model.run(values)
            times.append(perf_counter() - start)
    used = None if energy is None else (nvml.energy_joules() or 0.0) - energy
    digest = {name: float(np.abs(value).astype("float64").sum()) for name, value in outputs.items()}
    return {
        "first_seconds": first,
        "seconds": median(times),
        "joules": "not measured" if used is None else used / int(frames),
        "outputs": digest,
    }


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


_JOBS: dict[str, Job] = {
    "network": _network,
    "compile": _compile,
    "compile_plan": _compile_plan,
    "run": _run,
    "empty": _empty,
}


# ------------------------------------------------------------------------------ the measurements


def measured(
    artifact: Path,
    inputs: Path,
    *,
    frames: int,
    pipelined: bool = False,
    copies: bool = False,
    limit: Limit | None = None,
) -> dict[str, Any]:
    """What a process that only loads an artifact and runs it takes, at its peak.

    With `copies` a device that is the CPU has weights of its own, as any other GPU.

    Returns
    -------
    dict
        ``peak`` and ``device`` (bytes of the process, and of a GPU's own memory), and what the run
        said; ``failed`` if it did not live.
    """
    from tvm_edge.memory.process import Peak

    arguments = ("run", artifact, inputs, frames, pipelined, copies, artifact.parent)
    before = nvml.memory_in_use()
    with subprocess.Popen(
        [sys.executable, "-m", _MODULE, "--child", *map(str, arguments)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **_ALONE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit.enter if limit else None,
    ) as child:
        with Peak(child.pid) as peak, _device_peak(before) as device:
            try:
                out, err = child.communicate(timeout=_TIMEOUT)
            except subprocess.TimeoutExpired:
                child.kill()
                out, err = child.communicate()
                err += f"ended after {_TIMEOUT:.0f} s"
    found: dict[str, Any] = {"peak": peak.nbytes + device[0], "device": device[0]}
    if child.returncode == 0:
        return {**found, **json.loads(out.splitlines()[-1])}
    reason = (err.strip().splitlines() or ["no message"])[-1][:200]
    return {**found, "failed": f"exit status {child.returncode}: {reason}"}


@contextmanager
def _device_peak(before: int | None) -> Iterator[list[int]]:
    """What the first GPU's memory in use grows by, at its peak, meanwhile."""
    import threading

    grown = [0]
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.01):
            grown[0] = max(grown[0], (nvml.memory_in_use() or 0) - (before or 0))

    thread = threading.Thread(target=sample, daemon=True)
    if before is not None:
        thread.start()
    try:
        yield grown
    finally:
        done.set()
        if before is not None:
            thread.join()


def budgets(
    name: str, target: str, wanted: list[str], frames: int, folder: Path
) -> Iterator[dict[str, Any]]:
    """A row for each budget."""
    inputs = folder / f"{name}.npz"
    unplanned = folder / f"{name}.{target}.{_NONE}.tvme"
    digest: dict[str, float] = {}
    for budget in [_NONE, *(b for b in wanted if b != _NONE)]:
        row: dict[str, Any] = {"network": name, "target": target, "budget": budget}
        row["compiled"] = compiled = run_child(_MODULE, "compile", name, target, budget, folder)
        artifact = folder / f"{name}.{target}.{budget}.tvme"
        if "predicted" not in compiled:
            if compiled.get("smallest") and unplanned.exists():
                row["unplanned_limited"] = _in_limit(unplanned, inputs, budget)
            yield row
            continue
        row["run"] = run = measured(artifact, inputs, frames=frames)
        digest = digest or run.get("outputs", {})
        row["bars"] = {"prediction": _within(run["peak"], compiled["predicted"])}
        row["bars"]["outputs"] = run.get("outputs") is not None and all(
            np.isclose(run["outputs"][key], value, rtol=1e-3) for key, value in digest.items()
        )
        if budget != _NONE:
            row["bars"]["budget"] = run["peak"] <= _bytes(budget)
            row["limited"] = _in_limit(artifact, inputs, budget)
            row["unplanned_limited"] = _in_limit(unplanned, inputs, budget)
            artifact.unlink()
        yield row
    unplanned.unlink(missing_ok=True)


def _in_limit(artifact: Path, inputs: Path, budget: str) -> dict[str, Any]:
    with limited(_bytes(budget)) as limit:
        return {"limit": limit.kind, **measured(artifact, inputs, frames=1, limit=limit)}


def strategies(name: str, target: str, frames: int, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each plan."""
    names = ["as is", "no Winograd"]
    if target != "llvm":
        names += ["FC on the CPU", "FC on the CPU, pipelined", "FC split ×4"]
    for plan in names:
        row: dict[str, Any] = {"network": name, "target": target, "plan": plan}
        row["compiled"] = compiled = run_child(_MODULE, "compile_plan", name, target, plan, folder)
        if "predicted" in compiled:
            artifact = folder / f"{name}.{target}.plan.tvme"
            row["run"] = run = measured(
                artifact, folder / f"{name}.npz", frames=frames, pipelined=compiled["pipelined"]
            )
            row["bars"] = {"prediction": _within(run["peak"], compiled["predicted"])}
            artifact.unlink()
        yield row


def layers(name: str, folder: Path) -> dict[str, Any]:
    """Table 4: all memory, and the share of the fully connected layers in the weights."""
    import tvm_edge

    report = tvm_edge.analyze(folder / f"{name}.onnx", "llvm")
    assert report.memory is not None
    weights = sum(operator.weight_bytes for operator in report.operators)
    dense = sum(o.weight_bytes for o in report.operators if o.op_type in ("Gemm", "MatMul"))
    convolutions = sum(o.op_type == "Conv" for o in report.operators)
    return {
        "network": name,
        "convolutions": convolutions,
        "total_gib": (weights + report.memory.activations) / 2**30,
        "fc_share": dense / weights,
    }


def floor(target: str, folder: Path) -> dict[str, Any]:
    """The constants of ``tvm_edge/memory/floor.py``: of the process, and of a kernel."""
    points = []
    for count in (2, 42):
        compiled = run_child(_MODULE, "empty", target, count, folder)
        if "failed" in compiled:
            return {"target": target, **compiled}
        run = measured(folder / f"empty{count}.tvme", folder / "empty.npz", frames=3)
        if "failed" in run:
            return {"target": target, **run}
        parts = compiled["parts"]
        resident = parts["weights"] - parts["mapped"] + parts["activations"]
        points.append((compiled["kernels"], run["peak"] - resident, run["device"]))
    (few, least, device), (many, most, _) = points
    kernel = (most - least) / (many - few)
    process = (least - kernel * few) / 2**20
    return {
        "target": target,
        "process_mib": round(process, 1),
        "kernel_kib": round(kernel / 2**10, 1),
        "device_mib": round(device / 2**20, 1),
    }


def _within(peak: int, predicted: int) -> bool:
    return abs(peak - predicted) <= TOLERANCE * predicted


def _bytes(budget: str) -> int:
    from tvm_edge.memory.budget import parse_budget

    nbytes = parse_budget(budget)
    assert nbytes is not None
    return nbytes


# ------------------------------------------------------------------------------------- the output


def _line(row: dict[str, Any]) -> str:
    what = f"{row['network']:<14} {row['target']:<7} {row.get('budget', row.get('plan', '')):<26}"
    compiled, run = row["compiled"], row.get("run", {})
    for key in ("refused", "missing", "failed"):
        if key in compiled:
            return f"{what} {key}: {compiled[key][:160]}"
    taken = next((p["name"] for p in compiled["plans"] if p["taken"]), "")
    sizes = f"predicted {_mib(compiled['predicted'])} measured {_mib(run['peak'])} MiB"
    time = run.get("failed") or f"{run['seconds'] * 1e3:.1f} ms"
    bars = ", ".join(f"{name} {'ok' if met else 'MISSED'}" for name, met in row["bars"].items())
    limits = [
        f"{key} ({row[key]['limit']}): {row[key].get('failed', 'lives')[:60]}"
        for key in ("limited", "unplanned_limited")
        if key in row
    ]
    return "; ".join(filter(None, [f"{what} {sizes}", time, taken, bars, *limits]))


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f}"


def _here(target: str) -> bool:
    from tvm_edge import devices

    return target == "llvm" or any(device.target == target for device in devices())


def main() -> None:
    if is_child():
        serve(_JOBS)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--budgets", default=",".join(BUDGETS))
    parser.add_argument("--part", choices=["budgets", "strategies", "layers"])
    parser.add_argument("--frames", type=int, default=25)
    parser.add_argument("--floor", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    targets = [target for target in options.targets.split(",") if _here(target)]
    result: dict[str, Any] = {"machine": describe_machine(), "targets": targets}
    opened: Any = nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory()
    with opened as where:
        folder = Path(where)
        folder.mkdir(parents=True, exist_ok=True)
        if options.floor:
            result["floor"] = [floor(target, folder) for target in targets]
            for row in result["floor"]:
                print(row, flush=True)
        else:
            _measure(options, targets, folder, result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


def _measure(
    options: argparse.Namespace, targets: list[str], folder: Path, result: dict[str, Any]
) -> None:
    parts: dict[str, Callable[[str, str], Iterator[dict[str, Any]]]] = {
        "budgets": lambda name, target: budgets(
            name, target, options.budgets.split(","), options.frames, folder
        ),
        "strategies": lambda name, target: strategies(name, target, options.frames, folder),
    }
    for name in options.networks.split(","):
        failed = run_child(_MODULE, "network", name, folder).get("failed")
        if failed:
            print(f"{name}: {failed}", flush=True)
            continue
        for part, rows in parts.items():
            if options.part not in (None, part):
                continue
            for target in targets:
                for row in rows(name, target):
                    result.setdefault(part, []).append(row)
                    print(_line(row), flush=True)
        if options.part in (None, "layers"):
            row = layers(name, folder)
            result.setdefault("layers", []).append(row)
            print(row, flush=True)
        if not options.folder:
            for path in folder.glob(f"{name}.*"):
                path.unlink()


if __name__ == "__main__":
    main()
