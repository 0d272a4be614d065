"""Pairs and triples of operators to merge, drawn before anything was merged or tuned.

EMDL'21 (section 5, Figures 8 and 10) merges operators of the six networks of its Table 1, two and
three at a time. ``results/fusion/groups.json`` has pairs and triples of theirs, drawn from all
distinct operators by :func:`draw`, and ``python -m benchmarks run parallel_workloads`` writes it
again, byte for byte. An operator is a convolution, a pool or a product with constant weights, at
its own shapes, together with the element-wise operators after it that no other operator reads.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

from benchmarks.common.options import Parser
from benchmarks.common.paths import RESULTS

__all__ = [
    "BARRIER_FREE",
    "IDENTICAL",
    "NETWORKS",
    "draw",
    "group_model",
    "groups",
    "operator_model",
]

NETWORKS = (
    "deeplab_v3",
    "inception_v3",
    "resnet50_v2",
    "squeezenet1_0",
    "mobilenet_v1",
    "mobilenet_v2",
)
"""Networks of EMDL'21's Table 1."""

IDENTICAL = (
    ("deeplab_v3", "stage4/block1/project"),
    ("inception_v3", "conv2b"),
    ("resnet50_v2", "stage3/block0/conv3"),
    ("squeezenet1_0", "fire8/squeeze"),
    ("mobilenet_v1", "backbone/conv5/pointwise"),
    ("mobilenet_v2", "stage2/block1/project"),
)
"""One of each, for Figure 9: those of the list that it names first."""

BARRIER_FREE = (
    ("mobilenet_v2", "stage4/block0/depthwise"),
    ("mobilenet_v1", "backbone/conv6/depthwise"),
    ("inception_v3", "mixed6b/pool"),
)
"""Operators whose work-items share nothing, so that they can be merged by items."""

_ANCHORS = {"Conv", "MaxPool", "AveragePool", "Gemm", "MatMul"}
_TAILS = {"Relu", "Clip", "BatchNormalization", "Add", "Sigmoid", "HardSwish"}
_PAIRS, _TRIPLES, _SEED = 48, 24, 2021
_PATH = RESULTS / "fusion" / "groups.json"


def groups() -> list[list[list[str]]]:
    """The list: network and node of each member."""
    found: list[list[list[str]]] = json.loads(_PATH.read_text())
    return found


def draw() -> list[list[tuple[str, str]]]:
    """Pairs, then triples of operators: network and name of the node.

    A network is drawn for each member, then one of its distinct operators, so that networks of
    many layers have no more say than others.
    """
    chance = random.Random(_SEED)
    operators = {name: _distinct(name) for name in NETWORKS}
    found: list[list[tuple[str, str]]] = []
    for size, count in ((2, _PAIRS), (3, _TRIPLES)):
        for _ in range(count):
            networks = [chance.choice(NETWORKS) for _ in range(size)]
            found.append([(name, chance.choice(operators[name])) for name in networks])
    return found


@cache
def _network(name: str) -> Any:
    from tvm_edge import zoo

    return zoo.build(name)


@cache
def _shapes(name: str) -> dict[str, tuple[int, ...]]:
    graph = _network(name).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        dims = value.type.tensor_type.shape.dim
        shapes[value.name] = tuple(d.dim_value for d in dims)
    return shapes


def _distinct(name: str) -> list[str]:
    """Nodes of the first of each operators of the same shapes and attributes."""
    shapes, found = _shapes(name), {}
    for node in _network(name).graph.node:
        if node.op_type not in _ANCHORS:
            continue
        attributes = sorted(a.SerializeToString() for a in node.attribute)
        operands = tuple(shapes[t] for t in [*node.input[:2], *node.output])
        found.setdefault((node.op_type, operands, tuple(attributes)), node.name)
    return list(found.values())


def operator_model(network: str, node: str) -> Any:
    """The ONNX model of one operator of a network, tail included: an input and an output."""
    import onnx

    whole = _network(network)
    graph, weights = whole.graph, {t.name: t for t in whole.graph.initializer}
    readers: dict[str, list[Any]] = {}
    for other in graph.node:
        for tensor in other.input:
            readers.setdefault(tensor, []).append(other)
    results = {value.name for value in graph.output}
    (anchor,) = (other for other in graph.node if other.name == node)
    nodes = [anchor]
    while (end := nodes[-1].output[0]) not in results and len(readers.get(end, ())) == 1:
        (after,) = readers[end]
        others = [t for t in after.input if t and t != end]
        if after.op_type not in _TAILS or any(t not in weights for t in others):
            break
        nodes.append(after)
    shapes, floats = _shapes(network), onnx.TensorProto.FLOAT
    source = anchor.input[0]
    used = dict.fromkeys(t for n in nodes for t in n.input if t in weights)
    made = onnx.helper.make_graph(
        nodes,
        f"{network}/{node}",
        [onnx.helper.make_tensor_value_info(source, floats, (1, *shapes[source][1:]))],
        [onnx.helper.make_tensor_value_info(end, floats, (1, *shapes[end][1:]))],
        [weights[t] for t in used],
    )
    return onnx.helper.make_model(
        made, opset_imports=whole.opset_import, ir_version=whole.ir_version
    )


def group_model(members: list[Any]) -> Any:
    """Models side by side in one: tensors of member `i` begin with ``m{i}_``."""
    import onnx

    parts = [onnx.compose.add_prefix(model, f"m{i}_") for i, model in enumerate(members)]
    whole = parts[0]
    for part in parts[1:]:
        whole = onnx.compose.merge_models(whole, part, io_map=[])
    return whole


def main(arguments: Sequence[str]) -> None:
    """Write the list."""
    Parser("parallel_workloads", __doc__).parse_args(arguments)
    lines = ",\n".join(json.dumps(group) for group in draw())
    _PATH.write_text(f"[\n{lines}\n]\n")
    print(f"{len(groups())} groups in {_PATH.name}")
