"""Networks in float16 on slices of a GPU, the size of an edge device, beside PyTorch.

One row per network and slice: batch 1, µs of a call by device events around many calls.
``mixed`` and ``float32`` are tvm-edge's, heuristics alone. ``cuDNN`` is PyTorch in float16 with
channels last and algorithms chosen by measurement, ``compiled`` is ``torch.compile`` in its mode
``max-autotune``; both in a CUDA graph. ``compiled`` runs as it is and with inductor's minimum of 68
multiprocessors out of the way; the faster one counts.

NVIDIA's MPS gives a process some of the multiprocessors. Memory and caches are the whole GPU's, and
no setting of the GPU is touched. ``--slice 132`` is a whole H100.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

from benchmarks.common.correctness import (
    compare_outputs,
    load_expected,
    load_inputs,
    relative_error,
    write_reference,
)
from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Among, Parser, save_json
from benchmarks.common.processes import Job, run_child_within
from benchmarks.common.timing import machine_us, torch_us
from benchmarks.gpu.networks import NETWORKS

_CALLS = 30  # between two events
_ERRORS = {"float32": 1e-4, "tf32": 1e-2, "mixed": 2e-2}
_PEERS_ERROR = 5e-2
_PEERS = ("cuDNN", "compiled", "compiled with templates")
_MOST_SECONDS = 400
_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def _ours(name: str, precision: str, folder: Path) -> dict[str, Any]:
    """A job: compile the network for this slice, compare its results, and time it."""
    import tvm

    import tvm_edge

    start = perf_counter()
    path = folder / f"{name}.onnx"
    model = tvm_edge.compile(path, "cuda", precision=precision, fallback="none", tuning_logs=False)
    seconds = perf_counter() - start
    arrays = load_inputs(name, folder)
    error = compare_outputs(model.run(arrays), load_expected(name, folder), path)["error"]
    artifact = folder / f"{name}.{precision}.{os.getpid()}.tvme"
    model.export(artifact)
    inputs = {key: tvm.runtime.tensor(value, tvm.cuda()) for key, value in arrays.items()}
    return {
        "us": machine_us(artifact, "cuda", inputs, _CALLS),
        "error": error,
        "right": bool(error <= _ERRORS[precision]),
        "compile_seconds": seconds,
        "cores": tvm.cuda().multi_processor_count,
        "kernels": [[k.name, k.time_us, k.gflops] for k in model.profile(arrays).kernels],
    }


def _peer(name: str, peer: str, folder: Path) -> dict[str, Any]:
    """A job: the network in PyTorch, float16 with channels last."""
    import onnx
    import torch

    from benchmarks.gpu.pytorch import graphed, network

    torch.backends.cudnn.benchmark = True
    run: Any = network(onnx.load(folder / f"{name}.onnx"), "cuda", torch.float16)
    if peer != "cuDNN":
        if peer != "compiled":
            from torch._inductor import utils

            utils.is_big_gpu = lambda *_: True
        run = torch.compile(run, mode="max-autotune-no-cudagraphs")
    (array,) = load_inputs(name, folder).values()
    data = torch.from_numpy(array).cuda().to(torch.float16, memory_format=torch.channels_last)
    with torch.inference_mode():
        result = run(data.clone())[0].float().cpu().numpy()
    (expected,) = load_expected(name, folder).values()
    error = relative_error(result, expected)
    graph = graphed(run, data.clone())
    us = torch_us(graph.replay, _CALLS)
    return {"us": us, "error": error, "right": bool(error <= _PEERS_ERROR)}


JOBS: dict[str, Job] = {"prepare": write_reference, "ours": _ours, "peer": _peer}


@contextmanager
def _sliced() -> Iterator[None]:
    """Run MPS with folders of its own while this lasts."""
    with tempfile.TemporaryDirectory() as pipes, tempfile.TemporaryDirectory() as logs:
        os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": logs}
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=True)


def _percentage(cores: int, whole: int) -> str:
    """The share of the GPU's multiprocessors that MPS rounds to so many, by even numbers."""
    return f"{min(100 * cores / whole + 0.1, 100):.1f}" if cores < whole else "100"


def _measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import torch

    whole = torch.cuda.get_device_properties(0).multi_processor_count
    for name in options.networks:
        run_child_within(_MOST_SECONDS, __name__, "prepare", name, folder)
    found: dict[str, Any] = {}
    runs = [("ours", precision) for precision in options.precision]
    runs += [("peer", peer) for peer in options.peers]
    with _sliced():
        for cores in options.slice:
            share = {_PERCENTAGE: _percentage(cores, whole)}
            for _ in range(options.rounds):
                for name in options.networks:
                    row = found.setdefault(f"{cores} {name}", {})
                    for job, what in runs:
                        result = run_child_within(
                            _MOST_SECONDS, __name__, job, name, what, folder, **share
                        )
                        row.setdefault(what, []).append(result)
                        said = result.get("failed") or f"{result['us']:,.1f} µs, {result}"
                        print(f"{cores} {name} {what}: {said[:300]}", flush=True)
                        given = result.get("cores", cores)
                        if given != cores:
                            raise SystemExit(f"MPS gave {given} multiprocessors; ask for those")
                        save_json(options.json, found)
    return found


def _middle(results: Sequence[dict[str, Any]]) -> float:
    right = [each["us"] for each in results if each.get("right")]
    return median(right) if right else float("nan")


def _lines(found: dict[str, Any], options: argparse.Namespace) -> list[str]:
    ours = list(options.precision)
    lines = [
        f"| slice, network | {' | '.join((*ours, *options.peers))} | cuDNN / mixed "
        "| compiled / mixed |",
        "|---" * (3 + len(ours) + len(options.peers)) + "|",
    ]
    ratios: dict[tuple[str, str], list[float]] = {}
    for key, row in found.items():
        us = {what: _middle(results) for what, results in row.items()}
        compiled = min((us[p] for p in _PEERS[1:] if us.get(p, 0) > 0), default=float("nan"))
        words = [f"{us.get(what, float('nan')):,.0f}" for what in (*ours, *options.peers)]
        for peer, value in (("cuDNN", us.get("cuDNN", float("nan"))), ("compiled", compiled)):
            ratio = value / us.get("mixed", float("nan"))
            words.append(f"**{ratio:.2f}**")
            if ratio > 0:
                ratios.setdefault((key.split()[0], peer), []).append(ratio)
        lines.append(f"| {key} | {' | '.join(words)} |")
    lines.append("")
    for (cores, peer), values in ratios.items():
        lines.append(
            f"- {cores} multiprocessors, {peer} / mixed: geometric mean "
            f"**{geometric_mean(values):.2f}**, least {min(values):.2f}"
        )
    return lines


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = Parser("gpu_slices", __doc__)
    parser.shared(networks=Among(NETWORKS, NETWORKS), rounds=3, json=None)
    parser.add_argument("--slice", nargs="+", type=int, default=[8], help="multiprocessors")
    parser.add_argument("--precision", nargs="+", choices=_ERRORS, default=["mixed", "float32"])
    parser.add_argument("--peers", nargs="*", choices=_PEERS, default=list(_PEERS))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = _measure(options, Path(folder))
    print(describe_machine())
    print("\n".join(_lines(found, options)))
