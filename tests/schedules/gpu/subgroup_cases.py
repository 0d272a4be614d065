"""Convolutions by sub-groups against ONNX Runtime, in a process of its own.

``python -m tests.schedules.gpu.subgroup_cases SIZE`` runs all cases with sub-groups of that size on
the OpenCL device that this process sees, a CPU among them, and prints a line of JSON for each. A
process of its own: OpenCL's loader reads once where drivers are.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import tvm_edge
from tests.onnx_models import reference, relative_error
from tests.schedules.harness import Graph
from tvm_edge.compiler import compilation
from tvm_edge.hardware import ResolvedTarget, resolve_target

SIZES = (8, 16, 32)


def conv(
    *data: int, outputs: int, kernel: tuple[int, int], seed: int = 0, **attributes: Any
) -> Graph:
    """A convolution of constant filters, with a bias and a ReLU."""
    graph, random = Graph(seed), np.random.default_rng(seed + 1)
    shape = (outputs, data[1] // attributes.get("group", 1), *kernel)
    weight = graph.constant(random.standard_normal(shape).astype("float32"))
    bias = graph.constant(random.standard_normal(outputs).astype("float32"))
    graph.output(graph.op("Relu", graph.op("Conv", graph.input(*data), weight, bias, **attributes)))
    return graph


def residual(seed: int) -> Graph:
    """An epilogue reads an image and, for each column, a vector."""
    graph, random = Graph(seed), np.random.default_rng(seed + 1)
    weight = graph.constant(random.standard_normal((24, 12, 3, 3)).astype("float32"))
    made = graph.op("Conv", graph.input(1, 12, 8, 36), weight, pads=[1] * 4)
    made = graph.op("Add", made, graph.input(1, 24, 8, 36))
    graph.output(graph.op("Mul", made, graph.input(36)))
    return graph


def two_in_a_row(seed: int) -> Graph:
    """A depthwise convolution and one of single pixels, as in mobile networks."""
    graph, random = Graph(seed), np.random.default_rng(seed + 1)
    value = graph.input(2, 10, 16, 16)
    for shape, attributes in (
        ((10, 1, 3, 3), {"group": 10, "pads": [1] * 4}),
        ((20, 10, 1, 1), {}),
    ):
        weight = graph.constant(random.standard_normal(shape).astype("float32"))
        value = graph.op("Clip", graph.op("Conv", value, weight, **attributes), *_six(graph))
    graph.output(value)
    return graph


def _six(graph: Graph) -> tuple[str, str]:
    return graph.constant(np.float32(0)), graph.constant(np.float32(6))


def _case(*data: int, outputs: int, kernel: tuple[int, int], **attributes: Any) -> Any:
    return lambda seed: conv(*data, outputs=outputs, kernel=kernel, seed=seed, **attributes)


CASES: dict[str, tuple[Callable[[int], Graph], list[str]]] = {
    name: (graph, rules.split())
    for name, graph, rules in (
        ("3x3", _case(1, 16, 28, 28, outputs=32, kernel=(3, 3), pads=[1] * 4), "subgroup"),
        ("wide", _case(1, 3, 5, 160, outputs=8, kernel=(3, 3), pads=[1] * 4), "subgroup"),
        ("no padding", _case(1, 4, 11, 75, outputs=6, kernel=(3, 3)), "subgroup"),
        ("odd", _case(2, 5, 7, 7, outputs=11, kernel=(3, 3), pads=[1] * 4), "subgroup"),
        ("narrow", _case(1, 3, 9, 3, outputs=4, kernel=(3, 3), pads=[1] * 4), "subgroup"),
        (
            "stem",
            _case(1, 3, 47, 61, outputs=18, kernel=(7, 7), strides=[2, 2], pads=[3] * 4),
            "subgroup",
        ),
        (
            "asymmetric",
            _case(1, 4, 13, 50, outputs=5, kernel=(3, 2), strides=[2, 3], pads=[1, 0, 2, 1]),
            "subgroup",
        ),
        (
            "dilated",
            _case(1, 4, 20, 45, outputs=8, kernel=(3, 3), dilations=[2, 5], pads=[2, 5, 2, 5]),
            "subgroup",
        ),
        (
            "strided and dilated",
            _case(
                1,
                3,
                20,
                77,
                outputs=6,
                kernel=(3, 5),
                strides=[3, 2],
                dilations=[2, 3],
                pads=[4] * 4,
            ),
            "subgroup",
        ),
        (
            "groups",
            _case(1, 12, 8, 33, outputs=21, kernel=(3, 3), group=3, pads=[1] * 4),
            "subgroup",
        ),
        ("long window", _case(1, 2, 9, 40, outputs=8, kernel=(3, 13), pads=[1, 6] * 2), "subgroup"),
        ("1x1", _case(1, 20, 14, 14, outputs=24, kernel=(1, 1)), "subgroup"),
        ("1x1 odd", _case(2, 9, 5, 7, outputs=13, kernel=(1, 1)), "subgroup"),
        ("1x1 strided", _case(1, 8, 15, 15, outputs=12, kernel=(1, 1), strides=[2, 2]), "subgroup"),
        ("1x1 padded", _case(1, 8, 6, 20, outputs=9, kernel=(1, 1), pads=[1, 0, 0, 2]), "subgroup"),
        (
            "depthwise",
            _case(1, 12, 17, 64, outputs=12, kernel=(3, 3), group=12, pads=[1] * 4),
            "subgroup_depthwise",
        ),
        (
            "depthwise strided",
            _case(2, 7, 17, 15, outputs=7, kernel=(3, 3), group=7, pads=[1] * 4, strides=[2, 2]),
            "subgroup_depthwise",
        ),
        (
            "depthwise 5x5",
            _case(1, 6, 7, 7, outputs=6, kernel=(5, 5), group=6, pads=[2] * 4),
            "subgroup_depthwise",
        ),
        (
            "depthwise multiplier",
            _case(1, 6, 9, 40, outputs=18, kernel=(3, 3), group=6, pads=[1] * 4),
            "subgroup",
        ),
        ("residual", residual, "subgroup"),
        ("mobile", two_in_a_row, "subgroup_depthwise subgroup"),
    )
}
"""By name: the graph for a seed, and the rules that take its kernels."""

# A line of this window's weights takes more registers than a lane of 32 has.
RUNS = [(name, size) for name in CASES for size in SIZES if (name, size) != ("long window", 32)]
"""Cases and sizes that sub-groups take."""


def run_case(name: str, seed: int) -> dict[str, Any]:
    """Compile and compare, one case as exported and loaded; what the test asserts."""
    graph, _ = CASES[name]
    made = graph(seed)
    model = made.model()
    compiled = tvm_edge.compile(model, "opencl", fallback="none")
    rules = [kernel.rule for kernel in compiled.report.kernels]
    if name == "mobile":
        with tempfile.TemporaryDirectory() as folder:
            compiled.export(f"{folder}/model.tvme")
            compiled = tvm_edge.load(f"{folder}/model.tvme")
    got = compiled.run(made.values)
    errors = [relative_error(got[k], want) for k, want in reference(model, made.values).items()]
    return {"case": name, "error": max(errors), "rules": rules}


def _require(size: int) -> None:
    """Compile for this machine's device as if it were a GPU with sub-groups of `size` only."""

    def resolve(target: Any, host: Any = None) -> ResolvedTarget:
        resolved = resolve_target(target, host)
        if size not in resolved.spec.sub_groups:
            raise SystemExit(f"{resolved.spec.name} has sub-groups of {resolved.spec.sub_groups}")
        gpu = replace(
            resolved.spec, on_cpu=False, simd_bytes=16, cores=18, wave=size, sub_groups=(size,)
        )
        return replace(resolved, spec=gpu)

    compilation.resolve_target = resolve


def main(size: int, seed: int, names: list[str]) -> None:
    _require(size)
    for name in names or CASES:
        print(json.dumps(run_case(name, seed)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
