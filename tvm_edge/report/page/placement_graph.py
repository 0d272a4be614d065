"""The operators of the model as a graph: their readers, devices, and copies between devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_edge.report.page import units
from tvm_edge.report.page.devices import MISSING, device_classes
from tvm_edge.report.page.layered import Point, lay_out

if TYPE_CHECKING:
    from tvm_edge.report.decisions import Decisions
    from tvm_edge.report.operators import OperatorInfo

__all__ = ["DeviceCopy", "Graph", "device_copies", "placement_graph"]

NODE_WIDTH, NODE_HEIGHT = 224, 24
_COLUMN, _MARGIN = 240, 14
_GAP, _LABELLED_GAP = 14, 40  # between layers
_LETTERS = 28  # of a type and a name that fit a node


@dataclass(frozen=True)
class DeviceCopy:
    """A tensor that operators of another device read.

    Attributes
    ----------
    source : int
        The operator that computes it, by its position.
    readers : tuple[int, ...]
        Those on `device`.
    device : str
    label : str
        What is copied, and how.
    """

    source: int
    readers: tuple[int, ...]
    device: str
    label: str


@dataclass(frozen=True)
class _Node:
    index: int
    x: float
    y: float
    style: str
    op_type: str
    name: str
    detail: str
    sources: str
    readers: str


@dataclass(frozen=True)
class _Edge:
    path: str
    style: str


@dataclass(frozen=True)
class Graph:
    """Shapes that the template draws; lengths in pixels."""

    width: float
    height: float
    nodes: list[_Node]
    edges: list[_Edge]
    labels: list[tuple[float, float, str]]
    node_width: int = NODE_WIDTH
    node_height: int = NODE_HEIGHT


def device_copies(report: Decisions) -> list[DeviceCopy]:
    """Return the copies between operators on different devices, in the order of the model."""
    devices = _effective_devices(report.operators)
    known = {copy["tensor"]: copy for copy in report.copies}
    found: dict[tuple[int, str], list[int]] = {}
    for reader, operator in enumerate(report.operators):
        for source in operator.inputs:
            if devices[source] and devices[reader] and devices[source] != devices[reader]:
                found.setdefault((source, devices[reader]), []).append(reader)
    result = []
    for (source, device), readers in found.items():
        operator = report.operators[source]
        copy = known.get(operator.name)
        nbytes = copy["bytes"] if copy else operator.output_bytes
        # 0 is what copies say of tensors that only the run sizes.
        label = units.size(nbytes) if nbytes else "size depends on data"
        if copy is not None:
            label += ", shared" if copy.get("zero_copy") else ", copied"
        result.append(DeviceCopy(source, tuple(readers), device, label))
    return result


def placement_graph(report: Decisions) -> Graph | None:
    """The graph of the operators that a run computes; ``None`` if the report has no edges."""
    shown = [i for i, operator in enumerate(report.operators) if not operator.constant]
    position = {operator: node for node, operator in enumerate(shown)}
    edges = [
        (position[source], node)
        for operator, node in position.items()
        for source in report.operators[operator].inputs
    ]
    if not edges and len(shown) > 1:  # an artifact of an earlier version
        return None
    layout = lay_out(len(shown), edges)
    style = device_classes(report)
    kernels = _kernels_of(report)
    copied = {(c.source, reader): c for c in device_copies(report) for reader in c.readers}
    labels = {position[c.source]: c.label for c in device_copies(report)}
    heights = _heights(layout.layers, {layout.nodes[node][1] for node in labels})

    def pixels(point: Point) -> tuple[float, float]:
        return point[0] * _COLUMN + _MARGIN, heights[point[1]]

    readers: list[list[int]] = [[] for _ in shown]
    for source, node in edges:
        readers[source].append(shown[node])
    missing = {name for each in report.unsupported for name in each.operators}
    nodes = []
    for node, operator in enumerate(shown):
        info = report.operators[operator]
        x, y = pixels(layout.nodes[node])
        nodes.append(
            _Node(
                operator,
                round(x - NODE_WIDTH / 2),
                round(y),
                MISSING if info.name in missing else style[info.device],
                info.op_type,
                units.tail(info.name, max(6, _LETTERS - len(info.op_type))),
                _detail(info, kernels.get(info.name, [])),
                " ".join(map(str, info.inputs)),
                " ".join(map(str, readers[node])),
            )
        )
    drawn = []
    for (source, reader), between in layout.edges.items():
        points = [layout.nodes[source], *between, layout.nodes[reader]]
        crosses = (shown[source], shown[reader]) in copied
        drawn.append(_Edge(_path(list(map(pixels, points))), "crossing" if crosses else ""))
    drawn.sort(key=lambda edge: edge.style)  # copies on top
    feet = [(*pixels(layout.nodes[node]), label) for node, label in labels.items()]
    return Graph(
        round(layout.width * _COLUMN + 2 * _MARGIN),
        round((heights[-1] if heights else 0) + NODE_HEIGHT + _MARGIN),
        nodes,
        drawn,
        [(round(x + 8), round(y + NODE_HEIGHT + 16), label) for x, y, label in feet],
    )


def _heights(layers: int, labelled: set[int]) -> list[float]:
    """Return the top of each layer; layers with labels have space for them below."""
    found = [float(_MARGIN)] * min(layers, 1)
    for layer in range(1, layers):
        gap = _LABELLED_GAP if layer - 1 in labelled else _GAP
        found.append(found[-1] + NODE_HEIGHT + gap)
    return found


def _effective_devices(operators: tuple[OperatorInfo, ...]) -> list[str]:
    """Return the device of each operator's result; without a kernel, that of its first source."""
    found: list[str] = []
    for operator in operators:
        sources = (found[i] for i in operator.inputs if i < len(found))
        found.append(operator.device or next((device for device in sources if device), ""))
    return found


def _kernels_of(report: Decisions) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for number, kernel in enumerate(report.kernels, 1):
        for operator in kernel.operators:
            found.setdefault(operator, []).append(f"{number} {kernel.name}")
    return found


def _detail(info: OperatorInfo, kernels: list[str]) -> str:
    parts = [f"{info.op_type} {info.name}", f"{info.device or 'no kernel'}: {info.reason}"]
    if info.flops:
        parts.append(units.short_flops(info.flops))
    if kernels:
        parts.append(f"{'kernel' if len(kernels) == 1 else 'kernels'} {', '.join(kernels)}")
    return "; ".join(parts)


def _path(points: list[tuple[float, float]]) -> str:
    """From the foot of a node to the head of another, upright where it meets a layer."""
    x, y = points[0]
    steps = [f"M{x:.0f} {y + NODE_HEIGHT:.0f}"]
    for i, (to_x, to_y) in enumerate(points[1:], 1):
        middle = (points[i - 1][1] + NODE_HEIGHT + to_y) / 2
        if round(x) == round(to_x):
            steps.append(f"V{to_y:.0f}")
        else:
            steps.append(f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}")
        if i < len(points) - 1:
            steps.append(f"V{to_y + NODE_HEIGHT:.0f}")
        x = to_x
    return "".join(steps)
