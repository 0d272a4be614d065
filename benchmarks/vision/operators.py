"""Vision operators beside ONNX Runtime, NumPy, PyTorch, stock TVM and CUB.

``--device cpu``: tvm-edge and ONNX Runtime. ``--device cuda``: tvm-edge's CUDA and NVIDIA's OpenCL,
and PyTorch.

Workloads are those of :mod:`benchmarks.vision.workloads`. Every runtime runs in processes of its
own, which take turns. A figure is the median of the processes with their range in brackets, in
microseconds. A wrong result gets no ratio. What failed is said on the error stream and in the JSON
file.

- ``call``: the whole call from Python. On a CPU from NumPy arrays to NumPy arrays, what a framework
  does around its kernel included; ONNX operators are one-node models in both runtimes. On a GPU
  from its memory to its memory, and a synchronisation.
- ``kernels`` (CPU): without checks and copies of inputs and outputs; NumPy and ONNX Runtime have no
  such figure.
- ``events`` (GPU): device events around many calls without synchronisation.

**Sorts, top-k and prefix sums**: also NumPy; on the machine with CUDA ``torch.sort(stable=True)``,
``torch.topk``, ``torch.cumsum``, stock TVM (``tvm.compile``, with DispatchSortScan), and
``cub::DeviceSegmentedSort::StableSortPairs`` compiled by nvcc. tvm-edge's ``events`` are of the
compiled function alone, and ``events, model`` of the model through TVM's virtual machine, as stock
TVM's is. Every result is compared with NumPy's stable argsort, or its cumsum in float64: indices
and values exactly, sums to 1e-6 of the sum of the magnitudes, or exactly where they are exact in
float32. ``--sweep`` adds cost against length and against the number of segments, and draws them in
``benchmarks/results/vision/DEVICE.png``.

**Detection** (:mod:`benchmarks.vision.detection`): non-maximum suppression of one class and of
many, regions of interest, and what else detection heads do; on the machine with CUDA
``torchvision.ops`` and ``torch.nn.functional``. tvm-edge's ``events`` are of the model through
TVM's virtual machine, and PyTorch's of the same call as ``call``. Results are compared before
anything is timed. ``--device opencl`` is tvm-edge's OpenCL by itself, on any device; ``--small``
are workloads of small sizes, to try the benchmark. Where time is short: ``--part detection --rounds
2 --seconds 0.05``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.options import Among, Parser
from benchmarks.common.processes import run_child
from benchmarks.vision import sorting_peers
from benchmarks.vision.boxes import DETECTIONS
from benchmarks.vision.detection import measure_detection
from benchmarks.vision.sorting import measure_sorting
from benchmarks.vision.workloads import WORKLOADS

_PARTS = ("sorting", "detection")


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("vision", __doc__)
    operators = list(dict.fromkeys(w.operator for w in (*WORKLOADS, *DETECTIONS)))
    parser.add_argument("--device", choices=("cpu", "cuda", "opencl"), default="cpu")
    parser.add_argument(
        "--operators", nargs="+", choices=operators, default=operators, metavar="NAME"
    )
    parser.shared(part=Among(_PARTS, _PARTS), rounds=5, seconds=1.0, threads=2, json=None)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    if options.device == "opencl" and "sorting" in options.part:
        parser.error("--device opencl is for --part detection; sorts run with --device cuda")
    with tempfile.TemporaryDirectory(prefix="tvm-edge-vision-") as base:
        folder = Path(base)
        machine = run_child(sorting_peers.__name__, "describe", options.device, folder)
        record: dict[str, Any] = {
            "device": options.device,
            "threads": options.threads,
            "rounds": options.rounds,
            "seconds": options.seconds,
            "machine": machine,
        }
        chosen = set(options.operators)
        if "sorting" in options.part and chosen & {w.operator for w in WORKLOADS}:
            measure_sorting(options, machine, folder, record)
        if "detection" in options.part and chosen & {w.operator for w in DETECTIONS}:
            measure_detection(options, machine, folder, record)
