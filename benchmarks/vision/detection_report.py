"""Tables and bars of detection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from benchmarks.vision.boxes import Detection, Suppression
from benchmarks.vision.figures import (
    Column,
    Ratio,
    Rounds,
    Verdict,
    quotient_of,
    table_lines,
)

__all__ = [
    "COLUMNS",
    "RATIOS",
    "beside_lines",
    "rounding_lines",
    "table",
    "verdicts_of",
]

_BAR_TORCH = 5.0  # times torchvision's speed
_BARRED = frozenset({8732, 24_564})  # boxes
_BARRED_LAYOUTS = frozenset({"clustered", "disjoint"})
_BAR_ONNXRUNTIME = 1.5  # times ONNX Runtime's speed
_BAR_OPENCL = 1.25  # times CUDA's time

_OURS = Column("tvm-edge, call", "tvm-edge", "host_us")
_OURS_DEVICE = Column("tvm-edge, kernels", "tvm-edge", "device_us")
_ONNXRUNTIME = Column("ONNX Runtime, call", "onnxruntime", "host_us")
_CUDA = Column("CUDA, events", "cuda", "event_us")
_CUDA_CALL = Column("CUDA, call", "cuda", "host_us")
_OPENCL = Column("OpenCL, events", "opencl", "event_us")
_OPENCL_CALL = Column("OpenCL, call", "opencl", "host_us")
_TORCH = Column("PyTorch, events", "torch", "event_us")
_TORCH_CALL = Column("PyTorch, call", "torch", "host_us")

COLUMNS: Mapping[str, Sequence[Column]] = {
    "cpu": (_OURS, _OURS_DEVICE, _ONNXRUNTIME),
    "cuda": (_CUDA, _CUDA_CALL, _OPENCL, _OPENCL_CALL, _TORCH, _TORCH_CALL),
    "opencl": (_OPENCL, _OPENCL_CALL),
}
"""Parts of each device's tables."""

_TORCH_EVENTS = Ratio("PyTorch / CUDA, events", _TORCH, _CUDA)
_TORCH_CALLS = Ratio("PyTorch / CUDA, call", _TORCH_CALL, _CUDA_CALL)
_OPENCL_EVENTS = Ratio("OpenCL / CUDA, events", _OPENCL, _CUDA)

RATIOS: Mapping[str, Sequence[Ratio]] = {
    "cpu": (
        Ratio("ONNX Runtime / tvm-edge, call", _ONNXRUNTIME, _OURS),
        Ratio("ONNX Runtime / kernels", _ONNXRUNTIME, _OURS_DEVICE),
    ),
    "cuda": (_TORCH_EVENTS, _TORCH_CALLS, _OPENCL_EVENTS),
    "opencl": (),
}
"""Parts of each device's tables."""


def table(operator: str, workloads: Sequence[Detection], rounds: Rounds, device: str) -> list[str]:
    """A line for each workload of an operator."""
    names = [workload.name for workload in workloads if workload.operator == operator]
    return table_lines(operator, names, rounds, COLUMNS[device], RATIOS[device])


# --------------------------------------------------------------------------------------------- bars


def verdicts_of(workloads: Sequence[Detection], rounds: Rounds, device: str) -> list[Verdict]:
    """The bars of a device."""
    suppressions = [w for w in workloads if isinstance(w, Suppression)]
    verdicts: list[Verdict] = []
    for operator in dict.fromkeys(w.operator for w in suppressions) if device == "cpu" else ():
        same = [w for w in suppressions if w.operator == operator]
        for ratio in RATIOS["cpu"]:
            verdicts += _over_all(same, rounds, ratio, _BAR_ONNXRUNTIME)
    if device != "cuda":
        return verdicts
    for workload in suppressions:
        if (
            workload.operator == "nms"
            and workload.boxes in _BARRED
            and workload.layout in _BARRED_LAYOUTS
        ):
            for ratio in (_TORCH_EVENTS, _TORCH_CALLS):
                found = quotient_of(rounds[workload.name], ratio)
                text = f"{workload.name}, {ratio.title}"
                verdicts.append(Verdict(text, _BAR_TORCH, found[0] if found else None))
    for workload in workloads:
        found = quotient_of(rounds[workload.name], _OPENCL_EVENTS)
        value = found[0] if found else None
        text = f"{workload.name}, {_OPENCL_EVENTS.title}"
        verdicts.append(Verdict(text, _BAR_OPENCL, value, at_most=True))
    return verdicts


def _over_all(
    workloads: Sequence[Detection], rounds: Rounds, ratio: Ratio, bar: float
) -> list[Verdict]:
    """The geometric mean and the worst."""
    found = {w.name: quotient_of(rounds[w.name], ratio) for w in workloads}
    ratios = {name: quotient[0] for name, quotient in found.items() if quotient}
    complete = len(ratios) == len(workloads)
    text = (
        f"{workloads[0].operator} over {len(ratios)} of {len(workloads)} workloads, {ratio.title}"
    )
    worst = min(ratios, key=lambda name: ratios[name], default="")
    mean = geometric_mean(ratios.values()) if complete else None
    value = ratios[worst] if complete else None
    return [
        Verdict(f"{text}, geometric mean", bar, mean),
        Verdict(f"{text}, worst ({worst or 'none'})", bar, value),
    ]


def rounding_lines(rounds: Rounds) -> list[str]:
    """Workloads where a peer's boxes differ from ONNX's by the rounding of an IoU."""
    notes = {
        f"- {name} by {runtime}: {r['note']}"
        for name, results in rounds.items()
        for runtime, found in results.items()
        for r in found
        if "note" in r
    }
    return sorted(notes)


def beside_lines(rounds: Rounds) -> list[str]:
    """Operators that did not run where they should have."""
    return [
        f"- {name} by {runtime}: {', '.join(found[0]['beside'])} **on the CPU**, no figure"
        for name, results in rounds.items()
        for runtime, found in results.items()
        if found and found[0].get("beside")
    ]
