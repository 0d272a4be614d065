"""Tables, bars and pictures of sorts, top-k and prefix sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.common.paths import ROOT
from benchmarks.common.text import spread
from benchmarks.vision.figures import (
    Column,
    Ratio,
    Rounds,
    Verdict,
    figures_of,
    quotient_of,
    spread_us,
    table_lines,
)
from benchmarks.vision.sorting_peers import CPU_RUNTIMES, GPU_RUNTIMES
from benchmarks.vision.workloads import Workload

__all__ = [
    "COLUMNS",
    "COPIED",
    "LONGEST",
    "RATIOS",
    "copy_lines",
    "cpu_verdicts",
    "draw",
    "gpu_verdicts",
    "sweep_lines",
    "table",
]

LONGEST = {"cpu": 2**22, "cuda": 2**24}
"""Row of a sweep, in elements."""
COPIED = 16_777_216
"""Elements of the scan that is compared with a copy."""
_BAR_OPENCL = 1.25  # times CUDA's time
_BAR_TOP_K = 1.5  # times ONNX Runtime's speed
_BAR_COPY = 0.6  # of the bandwidth of a copy

_OURS = Column("tvm-edge, call", "tvm-edge", "host_us")
_OURS_DEVICE = Column("tvm-edge, kernels", "tvm-edge", "device_us")
_NUMPY = Column("NumPy, call", "numpy", "host_us")
_ONNXRUNTIME = Column("ONNX Runtime, call", "onnxruntime", "host_us")
_CUDA = Column("CUDA, events", "cuda", "kernel_us")
_CUDA_MODEL = Column("CUDA, events, model", "cuda", "event_us")
_CUDA_CALL = Column("CUDA, call", "cuda", "host_us")
_OPENCL = Column("OpenCL, events", "opencl", "kernel_us")
_OPENCL_CALL = Column("OpenCL, call", "opencl", "host_us")
_TORCH = Column("PyTorch, events", "torch", "event_us")
_TORCH_CALL = Column("PyTorch, call", "torch", "host_us")
_STOCK = Column("stock TVM, events, model", "stock", "event_us")
_CUB = Column("CUB, events", "cub", "event_us")
_CUB_CALL = Column("CUB, call", "cub", "host_us")

COLUMNS: Mapping[str, Sequence[Column]] = {
    "cpu": (_OURS, _OURS_DEVICE, _NUMPY, _ONNXRUNTIME),
    "cuda": (
        *(_CUDA, _CUDA_MODEL, _CUDA_CALL, _OPENCL, _OPENCL_CALL),
        *(_TORCH, _TORCH_CALL, _STOCK, _CUB, _CUB_CALL),
    ),
}
RATIOS: Mapping[str, Sequence[Ratio]] = {
    "cpu": (
        Ratio("NumPy / tvm-edge", _NUMPY, _OURS),
        Ratio("ONNX Runtime / tvm-edge", _ONNXRUNTIME, _OURS),
        Ratio("ONNX Runtime / kernels", _ONNXRUNTIME, _OURS_DEVICE),
    ),
    "cuda": (
        Ratio("PyTorch / CUDA", _TORCH, _CUDA),
        Ratio("stock TVM / CUDA, model", _STOCK, _CUDA_MODEL),
        Ratio("CUB / CUDA", _CUB, _CUDA),
        Ratio("OpenCL / CUDA", _OPENCL, _CUDA),
    ),
}
_SWEPT: Mapping[str, Sequence[Column]] = {
    "cpu": (_OURS, _NUMPY, _ONNXRUNTIME),
    "cuda": (_CUDA, _OPENCL, _TORCH, _CUB),
}


def table(
    operator: str, workloads: Sequence[Workload], rounds: Rounds, device: str
) -> Sequence[str]:
    """A line for each workload of an operator."""
    runtimes = CPU_RUNTIMES if device == "cpu" else GPU_RUNTIMES
    computing = {runtime for runtime, operators in runtimes.items() if operator in operators}
    columns = [c for c in COLUMNS[device] if c.runtime in computing]
    ratios = [r for r in RATIOS[device] if r.peer.runtime in computing]
    names = [workload.name for workload in workloads if workload.operator == operator]
    return table_lines(operator, names, rounds, columns, ratios)


def cpu_verdicts(
    workloads: Sequence[Workload], rounds: Rounds, copies: Sequence[dict[str, Any]]
) -> list[Verdict]:
    top_ks = [w for w in workloads if w.operator == "top_k"]
    verdicts = []
    for ratio in RATIOS["cpu"][1:] if top_ks else ():
        found = {w.name: quotient_of(rounds[w.name], ratio) for w in top_ks}
        ratios = {name: quotient[0] for name, quotient in found.items() if quotient}
        complete = len(ratios) == len(top_ks)
        text = f"top-k over {len(ratios)} of {len(top_ks)} workloads, {ratio.title}"
        mean = geometric_mean(ratios.values()) if complete else None
        verdicts.append(Verdict(f"{text}, geometric mean", _BAR_TOP_K, mean))
        worst = min(ratios, key=lambda name: ratios[name], default="")
        value = ratios[worst] if complete else None
        verdicts.append(Verdict(f"{text}, worst ({worst or 'none'})", _BAR_TOP_K, value))
    for workload in workloads:
        if workload.operator == "cumsum" and workload.shape == (COPIED,):
            part = None
            ours = figures_of(rounds[workload.name], _OURS_DEVICE)
            if ours and not any("failed" in copy for copy in copies):
                part = median(copy["host_us"] for copy in copies) / median(ours)
            text = f"{workload.name}, kernels, part of the bandwidth of a copy"
            verdicts.append(Verdict(text, _BAR_COPY, part))
    return verdicts


def gpu_verdicts(workloads: Sequence[Workload], rounds: Rounds) -> list[Verdict]:
    torch, stock, cub, opencl = RATIOS["cuda"]
    verdicts = []

    def ratio(workload: Workload, ratio: Ratio, bar: float, at_most: bool = False) -> None:
        found = quotient_of(rounds[workload.name], ratio)
        text = f"{workload.name}, {ratio.title}"
        verdicts.append(Verdict(text, bar, found[0] if found else None, at_most))

    for workload in workloads:
        shape, barred = workload.shape, True
        if workload.operator == "argsort" and shape in {(1, 8732), (80, 8732)}:
            ratio(workload, torch, 1.0)
        elif workload.operator == "argsort" and shape == (1, 1_000_000):
            ratio(workload, torch, 0.5)
        elif workload.operator == "segmented_argsort" and shape == (10_000,):
            ratio(workload, cub, 1.0)
        elif workload.operator == "cumsum" and shape in {(1, 8732), (80, 8732), (1, 1_000_000)}:
            ratio(workload, torch, 1.0)
            ratio(workload, stock, 1.0)
        else:
            barred = False
        if barred:
            ratio(workload, opencl, _BAR_OPENCL, at_most=True)
    return verdicts


def copy_lines(rounds: Rounds, copies: Sequence[dict[str, Any]], threads: int) -> list[str]:
    """The large scan beside a copy, 2N bytes counted for both."""
    failed = next((copy["failed"] for copy in copies if "failed" in copy), None)
    if failed:
        return [f"The copy failed: {failed}"]
    lines = [
        f"| {COPIED:,} floats, {threads} threads | µs | GB/s |",
        "|---|---|---|",
        f"| copy | {spread_us([c['host_us'] for c in copies])} "
        f"| {spread([c['gbs'] for c in copies])} |",
    ]
    name = f"cumsum {COPIED}"
    for column in (_OURS_DEVICE, _OURS, _NUMPY, _ONNXRUNTIME):
        figure = figures_of(rounds[name], column)
        if figure:
            speeds = [8 * COPIED / us / 1e3 for us in figure]
            lines.append(f"| cumsum, {column.title} | {spread_us(figure)} | {spread(speeds)} |")
    return lines


def sweep_lines(workloads: Sequence[Workload], rounds: Rounds, device: str) -> list[str]:
    return table_lines("sweep", (w.name for w in workloads), rounds, _SWEPT[device])


def draw(workloads: Sequence[Workload], rounds: Rounds, device: str, path: Path) -> str:
    """Cost against size, both logarithmic; says what was drawn."""
    try:
        import matplotlib
    except ImportError:
        return "No picture: matplotlib is not installed; run: pip install 'tvm-edge[bench]'"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    operators = [o for o in ("argsort", "cumsum", "segmented_argsort") if _of(o, workloads)]
    figure, _ = pyplot.subplots(1, len(operators), figsize=(5 * len(operators), 4))
    for panel, operator in zip(figure.axes, operators, strict=True):
        for column in _SWEPT[device]:
            points = [
                (workload.shape[-1], times)
                for workload in _of(operator, workloads)
                if (times := figures_of(rounds[workload.name], column))
            ]
            if points:
                sizes = [size for size, _ in points]
                line = panel.plot(
                    sizes, [median(t) for _, t in points], marker="o", label=column.title
                )
                low, high = [min(t) for _, t in points], [max(t) for _, t in points]
                panel.fill_between(sizes, low, high, color=line[0].get_color(), alpha=0.2)
        segments = operator == "segmented_argsort"
        panel.set(
            xscale="log",
            yscale="log",
            title="segmented argsort of 2**20 elements" if segments else f"{operator} of one row",
            xlabel="segments" if segments else "elements",
            ylabel="microseconds",
        )
        panel.grid(True, which="major", alpha=0.3)
        panel.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return f"Cost against size: `{path.relative_to(ROOT)}`"


def _of(operator: str, workloads: Sequence[Workload]) -> list[Workload]:
    return [w for w in workloads if w.operator == operator]
