"""Networks on slices of a GPU, the size of an edge device, beside PyTorch.

One row per network and slice: batch 1, µs of a call by device events around many calls.
``mixed``, ``tf32``, ``float32`` and ``int8`` are tvm-edge's, heuristics alone; ``int8`` is the
network quantised by ONNX Runtime's tool; ``mixed apart`` is ``mixed`` without parallel fusion.
``cuDNN`` is PyTorch in float16 with channels last and
algorithms chosen by measurement, ``cuDNN tf32`` the same in float32 with tf32 allowed, the faster
one of channels last and not, ``compiled`` is ``torch.compile`` in float16 in its mode
``max-autotune``; all in a CUDA graph. ``compiled`` runs as it is and with inductor's minimum of 68
multiprocessors out of the way; the faster one counts. What is ours is compiled before anything is
timed, ``--jobs`` at once. Outputs are compared with ONNX Runtime's: 1e-4 of the largest value in
float32, 1e-2 in tf32 and int8, 2e-2 in ``mixed``, and in int8 as much as ONNX Runtime's own outputs
change without its graph optimisations, where sums at a tie are rounded the other way.

A slice is some of the multiprocessors, see ``benchmarks/gpu/mps.py``; ``--slice 132`` is a whole
H100.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.correctness import (
    compare_outputs,
    load_expected,
    load_inputs,
    relative_error,
    write_expected,
    write_reference,
)
from benchmarks.common.machine import describe_machine
from benchmarks.common.onnx_runtime import onnxruntime_function
from benchmarks.common.options import Among, Parser, save_json
from benchmarks.common.processes import Job, run_child_within
from benchmarks.common.timing import machine_us, torch_us
from benchmarks.gpu.mps import share_of, sliced
from benchmarks.gpu.networks import NETWORKS

ALSO = ("googlenet", "yolov3", "ssd_mobilenet_v1")
_CALLS = 30  # between two events
_ERRORS = {"float32": 1e-4, "tf32": 1e-2, "mixed": 2e-2, "int8": 1e-2}
_APART = "mixed apart"
_PEERS_ERROR = 5e-2
_PEERS = ("cuDNN", "cuDNN tf32", "compiled", "compiled with templates")
_MOST_SECONDS = 400


def _prepare(name: str, precision: str, folder: Path) -> dict[str, Any]:
    """A job: write the network, quantised for int8, an input, and ONNX Runtime's outputs."""
    import onnx

    if precision != "int8":
        write_reference(name, folder)
        from benchmarks.gpu.pytorch import convolutional_part

        path = folder / f"{name}.onnx"
        onnx.save(convolutional_part(onnx.load(path)), path)
        write_expected(name, load_inputs(name, folder), folder)
        return {}

    from benchmarks.models.int8_models import inputs_of, quantized

    own = _name(name, precision)
    model, inputs = quantized(name), inputs_of(name, 0)
    expected = onnxruntime_function(model)(inputs)
    plain = onnxruntime_function(model, optimised=False)(inputs)
    onnx.save(model, folder / f"{own}.onnx")
    np.savez(folder / f"{own}.inputs.npz", **inputs)
    np.savez(folder / f"{own}.expected.npz", **expected)
    noise = max(relative_error(plain[each], value) for each, value in expected.items())
    (folder / f"{own}.noise").write_text(str(noise))
    return {}


def _name(network: str, precision: str) -> str:
    """Name of a network's files in a precision."""
    return f"{network}_int8" if precision == "int8" else network


def _compile(name: str, precision: str, cores: str, folder: Path) -> dict[str, Any]:
    """A job: compile the network for this slice."""
    import tvm_edge

    start = perf_counter()
    model = tvm_edge.compile(
        folder / f"{_name(name, precision)}.onnx",
        "cuda",
        precision="float32" if precision == "int8" else precision.split()[0],
        fallback="none",
        parallel_fusion="auto" if precision != _APART else False,
        tuning_logs=False,
    )
    seconds = perf_counter() - start
    model.export(_artifact(name, precision, cores, folder))
    return {"compile_seconds": seconds}


def _artifact(name: str, precision: str, cores: str, folder: Path) -> Path:
    return folder / f"{name}.{precision}.{cores}.tvme"


def _ours(name: str, precision: str, cores: str, folder: Path) -> dict[str, Any]:
    """A job: compare the results of what was compiled, and time it."""
    import tvm

    import tvm_edge

    artifact, own = _artifact(name, precision, cores, folder), _name(name, precision)
    model, arrays = tvm_edge.load(artifact), load_inputs(own, folder)
    expected = load_expected(own, folder)
    error = compare_outputs(model.run(arrays), expected, folder / f"{own}.onnx")["error"]
    noise = folder / f"{own}.noise"
    allowed = max(
        _ERRORS[precision.split()[0]], float(noise.read_text()) if noise.exists() else 0.0
    )
    inputs = {key: tvm.runtime.tensor(value, tvm.cuda()) for key, value in arrays.items()}
    return {
        "us": machine_us(artifact, "cuda", inputs, _CALLS),
        "error": error,
        "right": bool(error <= allowed),
        "allowed": allowed,
        "cores": tvm.cuda().multi_processor_count,
        "kernels": [[k.name, k.time_us, k.gflops] for k in model.profile(arrays).kernels],
    }


def _peer(name: str, peer: str, _cores: str, folder: Path) -> dict[str, Any]:
    """A job: the network in PyTorch, float16 with channels last, or tf32."""
    import onnx
    import torch

    from benchmarks.gpu.pytorch import graphed, network

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    dtype = torch.float32 if peer == "cuDNN tf32" else torch.float16
    formats = [torch.channels_last]
    if peer == "cuDNN tf32":
        formats.append(torch.contiguous_format)
    run: Any = network(onnx.load(folder / f"{name}.onnx"), "cuda", dtype)
    if not peer.startswith("cuDNN"):
        if peer != "compiled":
            from torch._inductor import utils

            utils.is_big_gpu = lambda *_: True
        run = torch.compile(run, mode="max-autotune-no-cudagraphs")
    (array,) = load_inputs(name, folder).values()
    expected = load_expected(name, folder).values()
    times, error = [], 0.0
    for layout in formats:
        data = torch.from_numpy(array).cuda().to(dtype, memory_format=layout)
        with torch.inference_mode():
            results = [each.float().cpu().numpy() for each in run(data.clone())]
        error = max(error, *map(relative_error, results, expected))
        times.append(torch_us(graphed(run, data.clone()).replay, _CALLS))
    return {"us": min(times), "error": error, "right": bool(error <= _PEERS_ERROR)}


JOBS: dict[str, Job] = {"prepare": _prepare, "compile": _compile, "ours": _ours, "peer": _peer}


def _measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import torch

    whole = torch.cuda.get_device_properties(0).multi_processor_count
    files = {("int8" if p == "int8" else "float32") for p in (*options.precision, "float32")}
    work = list(product(options.networks, sorted(files)))
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda job: _child("prepare", *job, folder), work))
    found: dict[str, Any] = {}
    runs = [("ours", precision) for precision in options.precision]
    runs += [("peer", peer) for peer in options.peers]
    with sliced():
        for cores in options.slice:
            share = share_of(cores, whole)
            ours = list(product(options.networks, options.precision))
            with ThreadPoolExecutor(options.jobs) as pool:
                compiled = pool.map(
                    lambda job, own=(cores, share): _child(
                        "compile", *job, own[0], folder, **own[1]
                    ),
                    ours,
                )
                seconds = dict(zip(ours, compiled, strict=True))
            for turn in range(options.rounds):
                for name, (job, what) in product(options.networks, runs):
                    if job == "peer" and turn >= options.peer_rounds:
                        continue
                    result = _child(job, name, what, cores, folder, **share)
                    result |= seconds.get((name, what), {})
                    row = found.setdefault(f"{cores} {name}", {})
                    row.setdefault(what, []).append(result)
                    said = result.get("failed") or f"{result['us']:,.1f} µs, {result}"
                    print(f"{cores} {name} {what}: {said[:200]}", flush=True)
                    given = result.get("cores", cores)
                    if given != cores:
                        raise SystemExit(f"MPS gave {given} multiprocessors; ask for those")
                    save_json(options.json, found)
    return found


def _child(job: str, *arguments: Any, **environment: str) -> dict[str, Any]:
    return run_child_within(_MOST_SECONDS, __name__, job, *arguments, **environment)


def _middle(results: Sequence[dict[str, Any]]) -> float:
    right = [each["us"] for each in results if each.get("right")]
    return median(right) if right else float("nan")


def _lines(found: dict[str, Any], options: argparse.Namespace) -> list[str]:
    ours = list(options.precision)
    ratios_of = (
        ("cuDNN", "mixed"),
        ("compiled", "mixed"),
        ("cuDNN tf32", "tf32"),
        ("mixed", "int8"),
        ("float32", "mixed"),
        (_APART, "mixed"),
    )
    named = " | ".join(f"{peer} / {own}" for peer, own in ratios_of)
    lines = [
        f"| slice, network | {' | '.join((*ours, *options.peers))} | {named} |",
        "|---" * (1 + len(ratios_of) + len(ours) + len(options.peers)) + "|",
    ]
    ratios: dict[tuple[str, str], list[float]] = {}
    for key, row in found.items():
        us = {what: _middle(results) for what, results in row.items()}
        words = [f"{us.get(what, float('nan')):,.0f}" for what in (*ours, *options.peers)]
        templates = us.get("compiled with templates", 0)
        if templates > 0:
            us["compiled"] = min(templates, us.get("compiled", templates))
        for peer, own in ratios_of:
            ratio = us.get(peer, float("nan")) / us.get(own, float("nan"))
            words.append(f"**{ratio:.2f}**")
            if ratio > 0:
                ratios.setdefault((key.split()[0], f"{peer} / {own}"), []).append(ratio)
        lines.append(f"| {key} | {' | '.join(words)} |")
    lines.append("")
    for (cores, peer), values in ratios.items():
        lines.append(
            f"- {cores} multiprocessors, {peer}: geometric mean "
            f"**{geometric_mean(values):.2f}**, least {min(values):.2f}"
        )
    return lines


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = Parser("gpu_slices", __doc__)
    parser.shared(networks=Among(NETWORKS, (*NETWORKS, *ALSO)), rounds=3, jobs=8, json=None)
    parser.add_argument("--slice", nargs="+", type=int, default=[8], help="multiprocessors")
    parser.add_argument(
        "--precision", nargs="+", choices=(*_ERRORS, _APART), default=["mixed", "float32"]
    )
    parser.add_argument("--peer-rounds", type=int, default=1)
    parser.add_argument("--peers", nargs="*", choices=_PEERS, default=list(_PEERS))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = _measure(options, Path(folder))
    print(describe_machine())
    print("\n".join(_lines(found, options)))
