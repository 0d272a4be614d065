"""Accuracy of classifiers in float16, beside float32.

Classifiers of the zoo with their calibrated weights, compiled with ``precision="mixed"`` and
``"float16"``, against ONNX Runtime's float32 on the same pictures, one picture a run. Of the
logits: the largest difference, relative to the largest logit of the picture (the worst picture and
the median one), and how often the most likely class is the same. ``margin`` is how far apart the
two most likely classes are, of the pictures whose class changes, in the same unit: a change at a
margin below the error is a tie that rounding decides. ``overflows`` counts the pictures with logits
that are infinite or NaN, because a tensor passed 65,504. Nothing is timed.

The target has to have float16: ``cuda``, ``llvm``, or ``opencl`` with ``cl_khr_fp16`` (on a CPU
Intel's runtime, see ``tests/schedules/gpu/test_float16.py``). The bar is 1e-2, and 99 % of the
classes.
``--image-size`` and ``--width`` make smaller networks, ``--keep-float32`` names exceptions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.machine import describe_machine
from benchmarks.common.onnx_runtime import onnxruntime_function
from benchmarks.common.options import Parser, save_json

PRECISIONS = ("mixed", "float16")
ERROR, AGREEMENT = 1e-2, 0.99

Array = NDArray[Any]


@dataclass(frozen=True)
class Accuracy:
    """One network in one precision.

    Attributes
    ----------
    worst, middle : float
        Largest difference of a logit, of the picture's largest logit.
    agreement : float
        Share of the pictures whose most likely class is float32's.
    margin : float
        The largest distance of the two most likely classes where it is not.
    overflows : int
        Pictures with logits that are infinite or NaN where float32's are not.
    operators, of_all : int
        On float16, and with float results.
    weights, weights_before : int
        Bytes.
    """

    network: str
    precision: str
    pictures: int
    worst: float
    middle: float
    agreement: float
    margin: float
    overflows: int
    operators: int
    of_all: int
    weights: int
    weights_before: int

    @property
    def good(self) -> bool:
        """True if the bar is met."""
        return self.worst <= ERROR and self.agreement >= AGREEMENT


def compare_logits(actual: Sequence[Array], expected: Sequence[Array]) -> dict[str, Any]:
    """Errors, agreement and margin of the logits of some pictures, each ``[classes]``.

    The error of a picture whose logits overflowed is infinite.
    """
    errors, same, margins, overflows = [], [], [0.0], 0
    for ours, theirs in zip(actual, expected, strict=True):
        if np.isfinite(theirs).all() and not np.isfinite(ours).all():
            overflows += 1
            errors.append(float("inf"))
            same.append(False)
            continue
        scale = float(np.abs(theirs).max())
        errors.append(float(np.abs(ours - theirs).max()) / scale)
        same.append(bool(ours.argmax() == theirs.argmax()))
        if not same[-1]:
            second, first = np.sort(theirs)[-2:]
            margins.append(float(first - second) / scale)
    return {
        "worst": max(errors),
        "middle": float(np.median(errors)),
        "agreement": float(np.mean(same)),
        "margin": max(margins),
        "overflows": overflows,
    }


def measure(network: str, target: str, options: Any, build: Mapping[str, Any]) -> list[Accuracy]:
    """A network in every precision."""
    import tvm_edge
    from tvm_edge import zoo

    model = zoo.build(network, **build)
    inputs = [zoo.sample_input(model, seed=seed) for seed in range(options.pictures)]
    reference = onnxruntime_function(model)
    expected = [reference(picture)["logits"][0] for picture in inputs]
    found = []
    for precision in options.precisions:
        compiled = tvm_edge.compile(
            model, target, precision=precision, precision_exceptions=options.keep_float32
        )
        actual = [compiled.run(picture)["logits"][0] for picture in inputs]
        info = compiled.report.precision
        assert info is not None
        found.append(
            Accuracy(
                network,
                precision,
                len(inputs),
                **compare_logits(actual, expected),
                operators=list(info.operators.values()).count(info.lower),
                of_all=len(info.operators),
                weights=info.weight_bytes,
                weights_before=info.weight_bytes_before,
            )
        )
    return found


def _markdown(rows: Sequence[Accuracy]) -> str:
    lines = [
        "| network | precision | pictures | worst error | median error | top-1 the same | margin "
        "| overflows | operators in it | weights, MiB | meets the bar |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| {r.network} | {r.precision} | {r.pictures} | {r.worst:.1e} | {r.middle:.1e} "
            f"| {r.agreement:.1%} | {r.margin:.1e} "
            f"| {r.overflows or '–'} | {r.operators} of {r.of_all} "
            f"| {r.weights / 2**20:.1f} of {r.weights_before / 2**20:.1f} "
            f"| {'yes' if r.good else 'no'} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Print the table; exit status 1 where the bar is missed."""
    from tvm_edge import zoo

    classifiers = [name for name in zoo.names() if zoo.entry(name).task == "classification"]
    parser = Parser("precision", __doc__)
    parser.shared(target="cuda", networks=classifiers, pictures=100, json=None)
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), metavar="NAME")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--width", type=float)
    parser.add_argument("--keep-float32", nargs="+", default=[], metavar="OPERATOR")
    options = parser.parse_args(arguments)
    wanted = {"image_size": options.image_size, "width": options.width}
    build = {name: value for name, value in wanted.items() if value is not None}
    rows: list[Accuracy] = []
    for network in options.networks:
        rows += measure(network, options.target, options, build)
        made = rows[-len(options.precisions) :]
        print(*_markdown(made).splitlines()[2:], sep="\n", file=sys.stderr, flush=True)
    print(_markdown(rows))
    described = {**describe_machine(), "target": options.target, **build}
    save_json(options.json, {"machine": described, "rows": [asdict(row) for row in rows]})
    sys.exit(0 if all(row.good for row in rows) else 1)
