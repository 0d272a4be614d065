"""Tensors of the original graph out of the results of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvm_edge.compiler.handing_out import KernelResult
from tvm_edge.workflow.node_groups import Graph, Group

if TYPE_CHECKING:
    import onnx

__all__ = ["tensors_of_kernels"]

_INT8_BIAS = 128


def tensors_of_kernels(
    groups: Sequence[Group],
    graph: Graph,
    results: Sequence[KernelResult],
    returned: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Find the tensors at the ends of groups among the results of kernels.

    Parameters
    ----------
    groups : sequence of Group
        Nodes that share kernels.
    graph : Graph
    results : sequence of KernelResult
    returned : mapping of str to numpy.ndarray
        Outputs of a run, those of the model among them.
    expected : mapping of str to numpy.ndarray
        The reference's tensors, whose shapes and types ours are brought to.

    Returns
    -------
    dict of str to numpy.ndarray
        Of a tensor that no kernel stores there is none.
    """
    found = {name: returned[name] for name in graph.outputs}
    by_node: dict[str, list[KernelResult]] = {}
    for result in results:
        for name in result.operators:
            by_node.setdefault(name, []).append(result)
    for group in groups:
        taken: set[str] = set()
        for end in group.ends:
            if end in found:
                continue
            maker = next(n for n in group.nodes if end in graph.nodes[n].output)
            # The last kernel of a node has its result; of several results the first that fits.
            candidates = by_node.get(graph.nodes[maker].name, [])
            for result in sorted(candidates, key=lambda each: -each.kernel):
                name = result.output.name
                if name in taken:
                    continue
                tensor = end
                rounding = _reader(graph, end, "QuantizeLinear")
                if rounding is not None and rounding.name not in by_node:
                    # The kernel rounds too, and may go back to floats.
                    tensor = rounding.output[0]
                    back = _reader(graph, tensor, "DequantizeLinear")
                    if not _is_int8(returned[name]):
                        tensor = "" if back is None else back.output[0]
                if tensor not in expected:
                    continue
                value = _in_model_layout(returned[name], expected[tensor])
                if value is not None:
                    taken.add(name)
                    found[tensor] = value
                    break
    return found


def _is_int8(value: np.ndarray) -> bool:
    return value.dtype in (np.int8, np.uint8)


def _reader(graph: Graph, tensor: str, operator: str) -> onnx.NodeProto | None:
    """The node of a type whose data is a tensor."""
    nodes = (n for n in graph.nodes if n.op_type == operator and n.input[0] == tensor)
    return next(nodes, None)


def _in_channel_blocks(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Return whether a shape is that of an image ``(N, C, *lengths)`` in blocks of channels.

    By whatever kernel: also one that only casts an image keeps its blocks.
    """
    if len(expected) < 3 or len(shape) != len(expected) + 1:
        return False
    blocks = -(-expected[1] // shape[-1]) if shape[-1] else 0
    return shape[:-1] == (expected[0], blocks, *expected[2:])


def _in_model_layout(value: np.ndarray, expected: np.ndarray) -> np.ndarray | None:
    """Bring a result of a kernel to the layout of the model, ``None`` if it is no such tensor."""
    if _in_channel_blocks(value.shape, expected.shape):
        moved = np.moveaxis(value, -1, 2)
        value = moved.reshape(value.shape[0], -1, *value.shape[2:-1])[:, : expected.shape[1]]
    if value.shape != expected.shape:
        if value.size != expected.size:
            return None
        value = value.reshape(expected.shape)
    if (value.dtype.kind in "iu") != (expected.dtype.kind in "iu"):
        return None
    if value.dtype == np.int8 and expected.dtype == np.uint8:
        value = (value.astype("int16") + _INT8_BIAS).astype("uint8")
    return value
