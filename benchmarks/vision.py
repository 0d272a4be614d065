"""Sorts, top-k and prefix sums beside other libraries: ``python -m benchmarks.vision``.

``--device cpu`` (default): tvm-edge, NumPy and ONNX Runtime. ``--device cuda``: tvm-edge's CUDA and
NVIDIA's OpenCL, ``torch.sort(stable=True)``, ``torch.topk``, ``torch.cumsum``, stock TVM
(``tvm.compile``, with DispatchSortScan), and ``cub::DeviceSegmentedSort::StableSortPairs`` compiled
by nvcc. ``--operators NAME …`` chooses; ``--rounds N`` processes are timed for each runtime
(default 5), for ``--seconds S`` per workload (default 1), with ``--threads N`` on a CPU (default
2); ``--sweep`` adds cost against length and against the number of segments, and draws them in
``benchmarks/vision_DEVICE.png``; ``--json FILE`` writes everything.

Workloads are those of :mod:`benchmarks.vision_workloads`. Every runtime runs in processes of its
own, which take turns. A figure is the median of the processes with their range in brackets, in
microseconds. Every result is compared with NumPy's stable argsort, or its cumsum in float64:
indices and values exactly, sums to 1e-6 of the sum of the magnitudes, or exactly where they are
exact in float32. A wrong result gets no ratio. What failed is said on the error stream and in the
JSON file.

- ``call``: the whole call from Python. On a CPU from NumPy arrays to NumPy arrays, what a framework
  does around its kernel included; a top-k is a one-node ONNX model in both runtimes. On a GPU from
  its memory to its memory, and a synchronisation.
- ``kernels`` (CPU): without checks and copies of inputs and outputs; NumPy and ONNX Runtime have no
  such figure.
- ``events`` (GPU): device events around 100 calls without synchronisation. tvm-edge's is of the
  compiled function alone, and ``events, model`` of the model through TVM's virtual machine, as
  stock TVM's is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.cpu_peaks import spread
from benchmarks.cpu_runtimes import ENVIRONMENT
from benchmarks.lines_of_code import lines_markdown, operator_lines
from benchmarks.processes import run_child
from benchmarks.vision_peers import CPU_RUNTIMES, GPU_RUNTIMES, MODULE, has_runtime
from benchmarks.vision_workloads import WORKLOADS, Workload, sweep_workloads

_LONGEST = {"cpu": 2**22, "cuda": 2**24}  # row of a sweep
_COPIED = 16_777_216  # elements, of the scan that is compared with a copy
_BAR_OPENCL = 1.25  # times CUDA's time
_BAR_TOP_K = 1.5  # times ONNX Runtime's speed
_BAR_COPY = 0.6  # of the bandwidth of a copy

Rounds = dict[str, dict[str, list[dict[str, Any]]]]
"""Workload's name → runtime → what each process found."""


@dataclass(frozen=True)
class Column:
    """A figure of one runtime in a table."""

    title: str
    runtime: str
    key: str


@dataclass(frozen=True)
class Ratio:
    """How many times faster the second column is than the first one."""

    title: str
    peer: Column
    own: Column


@dataclass(frozen=True)
class Verdict:
    """A bar, and what was found; ``None`` where a runtime failed or was wrong."""

    text: str
    bar: float
    value: float | None
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Whether it is."""
        if self.value is None:
            return False
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def __str__(self) -> str:
        value = "no figure" if self.value is None else f"{self.value:.2f}"
        sign = "<=" if self.at_most else ">="
        return (
            f"- {self.text}: **{value}**; bar {sign} {self.bar}: "
            f"{'**met**' if self.met else '**missed**'}"
        )


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

_COLUMNS: Mapping[str, Sequence[Column]] = {
    "cpu": (_OURS, _OURS_DEVICE, _NUMPY, _ONNXRUNTIME),
    "cuda": (
        *(_CUDA, _CUDA_MODEL, _CUDA_CALL, _OPENCL, _OPENCL_CALL),
        *(_TORCH, _TORCH_CALL, _STOCK, _CUB, _CUB_CALL),
    ),
}
_RATIOS: Mapping[str, Sequence[Ratio]] = {
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


# -------------------------------------------------------------------------------- measurements


def _prepare(
    workloads: Sequence[Workload], device: str, folder: Path
) -> dict[str, dict[str, dict[str, Any]]]:
    """Compile everything; workload's name → target → what the compiler said."""
    jobs: list[tuple[str, tuple[str, ...], str]] = []  # runtime, job and arguments, workload
    for workload in workloads:
        targets = {"cpu": ("llvm",), "cuda": ("cuda", "opencl")}[device]
        jobs += [(target, ("compile", target, workload.name), workload.name) for target in targets]
        if device == "cpu" and workload.operator in CPU_RUNTIMES["onnxruntime"]:
            jobs.append(("onnxruntime", ("save_onnx", workload.name), workload.name))
        if device == "cuda" and workload.operator in GPU_RUNTIMES["stock"]:
            jobs.append(("stock", ("compile_stock", workload.name), workload.name))
    if device == "cuda":
        jobs.append(("cub", ("build_cub",), ""))
    found: dict[str, dict[str, dict[str, Any]]] = {}
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        results = pool.map(
            lambda job: run_child(MODULE, *job[1], folder, **_environment(job[0])), jobs
        )
        for (runtime, _, name), result in zip(jobs, results, strict=True):
            found.setdefault(name, {})[runtime] = result
            for what in ("failed", "model_failed", "kernel_failed"):
                if what in result:
                    _note(f"{name} {runtime}, {what}: {result[what]}")
    return found


def _environment(runtime: str) -> Mapping[str, str]:
    """What a process has in its environment."""
    return {"TVM_EDGE_OPENCL": "nvidia"} if runtime == "opencl" else {}


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _note_failures(name: str, results: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    for runtime, found in results.items():
        for reason in sorted({r["failed"] for r in found if "failed" in r}):
            _note(f"{name} by {runtime}: {reason}")


def _save(options: argparse.Namespace, rounds: Rounds, **more: Any) -> None:
    """Write what is known so far."""
    if options.json:
        content = {
            "device": options.device,
            "threads": options.threads,
            "rounds": options.rounds,
            "seconds": options.seconds,
            "workloads": rounds,
        }
        options.json.write_text(json.dumps(content | more, indent=2))


def _measure_cpu(
    workloads: Sequence[Workload],
    compiled: Mapping[str, Mapping[str, dict[str, Any]]],
    options: argparse.Namespace,
    folder: Path,
) -> tuple[Rounds, list[dict[str, Any]]]:
    """A process for each workload, runtime and round; and copies beside the large scan."""
    rounds: Rounds = {}
    copies: list[dict[str, Any]] = []
    for workload in workloads:
        results = rounds[workload.name] = {r: [] for r in has_runtime(workload, CPU_RUNTIMES)}
        for _ in range(options.rounds):
            for runtime, found in results.items():
                failed = compiled[workload.name]["llvm"] if runtime == "tvm-edge" else {}
                arguments = (runtime, workload.name, options.threads, options.seconds, folder)
                environment = ENVIRONMENT.get(runtime, {})
                found.append(
                    {"failed": failed["failed"]}
                    if "failed" in failed
                    else run_child(MODULE, "time_cpu", *arguments, **environment)
                )
            if workload.shape == (_COPIED,):
                how = (_COPIED, options.threads, options.seconds, folder)
                copies.append(run_child(MODULE, "copy", *how))
        _note(_line(workload, results, _COLUMNS["cpu"], _RATIOS["cpu"]))
        _note_failures(workload.name, results)
        _save(options, rounds)
    return rounds, copies


def _measure_gpu(
    workloads: Sequence[Workload], options: argparse.Namespace, folder: Path
) -> Rounds:
    """A process for each runtime and round, which times all workloads."""
    (folder / "workloads.json").write_text(json.dumps([w.name for w in workloads]))
    rounds: Rounds = {w.name: {r: [] for r in has_runtime(w, GPU_RUNTIMES)} for w in workloads}
    for number in range(options.rounds):
        for runtime in GPU_RUNTIMES:
            arguments = (runtime, options.seconds, folder)
            done = run_child(MODULE, "time_gpu", *arguments, **_environment(runtime))
            for name, results in rounds.items():
                if runtime in results:
                    results[runtime].append(done if "failed" in done else done["results"][name])
            _note(f"round {number + 1}: {runtime} {done.get('failed', 'done')}")
        _save(options, rounds)
    for name, results in rounds.items():
        _note_failures(name, results)
    return rounds


# ----------------------------------------------------------------------------------- figures


def _figure(results: Mapping[str, Sequence[dict[str, Any]]], column: Column) -> list[float]:
    """Of each process; nothing if one failed or was wrong."""
    found = results.get(column.runtime, [])
    if not all(r.get("right") and column.key in r for r in found):
        return []
    return [r[column.key] for r in found]


def _quotient(
    results: Mapping[str, Sequence[dict[str, Any]]], ratio: Ratio
) -> tuple[float, list[float]] | None:
    """Of the medians, and round by round."""
    peer, own = _figure(results, ratio.peer), _figure(results, ratio.own)
    if not peer or not own:
        return None
    return median(peer) / median(own), [a / b for a, b in zip(peer, own, strict=True)]


def _spread(microseconds: Sequence[float]) -> str:
    """Median and range."""
    middle, *ends = (
        f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        for value in (median(microseconds), min(microseconds), max(microseconds))
    )
    return f"{middle} [{'–'.join(ends)}]"


def _cell(results: Mapping[str, Sequence[dict[str, Any]]], column: Column) -> str:
    found = results.get(column.runtime, [])
    if not found:
        return "–"
    if any("failed" in r for r in found):
        return "**failed**"
    if not all(r["right"] for r in found):
        return f"**wrong** by {max(r['error'] for r in found):.3g}"
    figure = _figure(results, column)
    return _spread(figure) if figure else "–"


def _line(
    workload: Workload,
    results: Mapping[str, Sequence[dict[str, Any]]],
    columns: Sequence[Column],
    ratios: Sequence[Ratio],
) -> str:
    cells = [workload.name, *(_cell(results, column) for column in columns)]
    for ratio in ratios:
        found = _quotient(results, ratio)
        cells.append(
            f"**{found[0]:.2f}** [{min(found[1]):.2f}–{max(found[1]):.2f}]" if found else "–"
        )
    return f"| {' | '.join(cells)} |"


def _table(
    operator: str, workloads: Sequence[Workload], rounds: Rounds, device: str
) -> Sequence[str]:
    """A line for each workload of an operator."""
    runtimes = CPU_RUNTIMES if device == "cpu" else GPU_RUNTIMES
    computing = {runtime for runtime, operators in runtimes.items() if operator in operators}
    columns = [c for c in _COLUMNS[device] if c.runtime in computing]
    ratios = [r for r in _RATIOS[device] if r.peer.runtime in computing]
    titles = [operator, *(f"{c.title}, µs" for c in columns), *(r.title for r in ratios)]
    return [
        f"| {' | '.join(titles)} |",
        "|" + "---|" * len(titles),
        *(
            _line(workload, rounds[workload.name], columns, ratios)
            for workload in workloads
            if workload.operator == operator
        ),
    ]


def _cpu_verdicts(
    workloads: Sequence[Workload], rounds: Rounds, copies: Sequence[dict[str, Any]]
) -> list[Verdict]:
    top_ks = [w for w in workloads if w.operator == "top_k"]
    verdicts = []
    for ratio in _RATIOS["cpu"][1:] if top_ks else ():
        found = {w.name: _quotient(rounds[w.name], ratio) for w in top_ks}
        ratios = {name: quotient[0] for name, quotient in found.items() if quotient}
        complete = len(ratios) == len(top_ks)
        text = f"top-k over {len(ratios)} of {len(top_ks)} workloads, {ratio.title}"
        mean = geometric_mean(ratios.values()) if complete else None
        verdicts.append(Verdict(f"{text}, geometric mean", _BAR_TOP_K, mean))
        worst = min(ratios, key=lambda name: ratios[name], default="")
        value = ratios[worst] if complete else None
        verdicts.append(Verdict(f"{text}, worst ({worst or 'none'})", _BAR_TOP_K, value))
    for workload in workloads:
        if workload.operator == "cumsum" and workload.shape == (_COPIED,):
            part = None
            ours = _figure(rounds[workload.name], _OURS_DEVICE)
            if ours and not any("failed" in copy for copy in copies):
                part = median(copy["host_us"] for copy in copies) / median(ours)
            text = f"{workload.name}, kernels, part of the bandwidth of a copy"
            verdicts.append(Verdict(text, _BAR_COPY, part))
    return verdicts


def _gpu_verdicts(workloads: Sequence[Workload], rounds: Rounds) -> list[Verdict]:
    torch, stock, cub, opencl = _RATIOS["cuda"]
    verdicts = []

    def ratio(workload: Workload, ratio: Ratio, bar: float, at_most: bool = False) -> None:
        found = _quotient(rounds[workload.name], ratio)
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


def _copy_lines(rounds: Rounds, copies: Sequence[dict[str, Any]], threads: int) -> list[str]:
    """The large scan beside a copy, 2N bytes counted for both."""
    failed = next((copy["failed"] for copy in copies if "failed" in copy), None)
    if failed:
        return [f"The copy failed: {failed}"]
    lines = [
        f"| {_COPIED:,} floats, {threads} threads | µs | GB/s |",
        "|---|---|---|",
        f"| copy | {_spread([c['host_us'] for c in copies])} "
        f"| {spread([c['gbs'] for c in copies])} |",
    ]
    name = f"cumsum {_COPIED}"
    for column in (_OURS_DEVICE, _OURS, _NUMPY, _ONNXRUNTIME):
        figure = _figure(rounds[name], column)
        if figure:
            speeds = [8 * _COPIED / us / 1e3 for us in figure]
            lines.append(f"| cumsum, {column.title} | {_spread(figure)} | {spread(speeds)} |")
    return lines


# --------------------------------------------------------------------------------------- sweeps


def _sweep_lines(workloads: Sequence[Workload], rounds: Rounds, device: str) -> list[str]:
    columns = _SWEPT[device]
    titles = ["sweep", *(f"{c.title}, µs" for c in columns)]
    return [
        f"| {' | '.join(titles)} |",
        "|" + "---|" * len(titles),
        *(_line(workload, rounds[workload.name], columns, ()) for workload in workloads),
    ]


def _draw(workloads: Sequence[Workload], rounds: Rounds, device: str, path: Path) -> str:
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
                if (times := _figure(rounds[workload.name], column))
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
    return f"Cost against size: `{path.relative_to(Path(__file__).parents[1])}`"


def _of(operator: str, workloads: Sequence[Workload]) -> list[Workload]:
    return [w for w in workloads if w.operator == operator]


# ----------------------------------------------------------------------------------------- main


def _machine_line(machine: Mapping[str, Any]) -> str:
    """Where a table was measured."""
    if "failed" in machine:
        return f"Machine not described: {machine['failed']}"
    parts = [machine["date"], f"{machine['cpu']}, {machine['cores']} cores"]
    parts += [machine["gpu"]] if "gpu" in machine else []
    versions = [f"{name} {version}" for name, version in machine["versions"].items()]
    return "; ".join([*parts, f"Python {machine['python']}", *versions])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    operators = list(dict.fromkeys(w.operator for w in WORKLOADS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--operators", nargs="+", choices=operators, default=operators)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = options.device
    listed = [w for w in WORKLOADS if w.operator in options.operators]
    swept = [
        w
        for w in (sweep_workloads(_LONGEST[device]) if options.sweep else ())
        if w.operator in options.operators
    ]
    copies: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tvm-edge-vision-") as base:
        folder = Path(base)
        machine = run_child(MODULE, "describe", device, folder)
        compiled = _prepare([*listed, *swept], device, folder)
        if device == "cpu":
            rounds, copies = _measure_cpu([*listed, *swept], compiled, options, folder)
        else:
            rounds = _measure_gpu([*listed, *swept], options, folder)
    if device == "cpu":
        verdicts = _cpu_verdicts(listed, rounds, copies)
    else:
        verdicts = _gpu_verdicts(listed, rounds)
    _save(
        options,
        rounds,
        machine=machine,
        verdicts=[{"text": v.text, "bar": v.bar, "value": v.value, "met": v.met} for v in verdicts],
        compiled=compiled,
        copies=copies,
        lines_of_code=operator_lines(),
    )
    tables = [_table(o, listed, rounds, device) for o in operators if o in options.operators]
    tables += [_copy_lines(rounds, copies, options.threads)] if copies else []
    tables += [_sweep_lines(swept, rounds, device)] if swept else []
    for table in tables:
        print(_machine_line(machine), *table, sep="\n", end="\n\n")
    if swept:
        print(_draw(swept, rounds, device, Path(__file__).with_name(f"vision_{device}.png")))
        print()
    print(*verdicts, sep="\n", end="\n\n")
    wrong = [
        f"{name} by {runtime}"
        for name, results in rounds.items()
        for runtime, found in results.items()
        if not all(r.get("right") for r in found)
    ]
    print(f"- wrong or failed: {', '.join(wrong) or 'none'}", end="\n\n")
    print(lines_markdown())


if __name__ == "__main__":
    main()
