"""A recogniser of lines of text with recurrent layers, written node by node, of open sizes.

The CRNN of Shi et al., "An End-to-End Trainable Neural Network for Image-based Sequence
Recognition", TPAMI 2017, table 1: seven convolutions take a line of 32 rows to one row, whose
columns are the steps of two LSTM layers that read both ways. Batch normalisation is folded into
convolutions, weights are random with a fixed seed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

__all__ = ["CLASSES", "write_crnn"]

CLASSES = 37
"""Letters and digits, and the blank of CTC."""

_HIDDEN = 256

# Filters, kernel, padding, pooling after it (window, strides, padding of the columns).
_LAYERS: tuple[tuple[int, int, int, tuple[tuple[int, int], tuple[int, int], int] | None], ...] = (
    (64, 3, 1, ((2, 2), (2, 2), 0)),
    (128, 3, 1, ((2, 2), (2, 2), 0)),
    (256, 3, 1, None),
    (256, 3, 1, ((2, 2), (2, 1), 1)),
    (512, 3, 1, None),
    (512, 3, 1, ((2, 2), (2, 1), 1)),
    (512, 2, 0, None),
)


class _Graph:
    """Nodes and weights in the order they are made."""

    def __init__(self) -> None:
        self.nodes: list[object] = []
        self.weights: list[object] = []
        self._random = np.random.default_rng(0)

    def node(self, operator: str, *inputs: str, output: str = "", **attributes: object) -> str:
        import onnx

        name = output or f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def weight(self, shape: tuple[int, ...], deviation: float) -> str:
        values = deviation * self._random.standard_normal(shape)
        return self.constant(values.astype(np.float32))

    def constant(self, values: np.ndarray) -> str:
        import onnx

        name = f"weight{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(values, name))
        return name

    def recurrent(self, x: str, features: int) -> str:
        """Add an LSTM layer both ways: (steps, batch, features) to (steps, batch, 2 * hidden)."""
        deviation = _HIDDEN**-0.5
        weights = [
            self.weight((2, 4 * _HIDDEN, columns), deviation) for columns in (features, _HIDDEN)
        ]
        bias = self.weight((2, 8 * _HIDDEN), 0.1)
        found = self.node("LSTM", x, *weights, bias, hidden_size=_HIDDEN, direction="bidirectional")
        # (steps, directions, batch, hidden)
        turned = self.node("Transpose", found, perm=[0, 2, 1, 3])
        return self.node("Reshape", turned, self.constant(np.array([0, 0, -1], np.int64)))


def write_crnn(path: Path) -> None:
    """Write the model: ``line`` (batch, 1, 32, width) to ``text`` (steps, batch, classes)."""
    import onnx

    graph, x, channels = _Graph(), "line", 1
    for filters, kernel, padding, pool in _LAYERS:
        deviation = (2 / (channels * kernel * kernel)) ** 0.5
        weight = graph.weight((filters, channels, kernel, kernel), deviation)
        bias = graph.weight((filters,), 0.1)
        x = graph.node("Conv", x, weight, bias, pads=[padding] * 4)
        x, channels = graph.node("Relu", x), filters
        if pool is not None:
            window, strides, columns = pool
            pads = [0, columns, 0, columns]
            x = graph.node("MaxPool", x, kernel_shape=window, strides=strides, pads=pads)
    row = graph.node("Squeeze", x, graph.constant(np.array([2], np.int64)))
    x = graph.node("Transpose", row, perm=[2, 0, 1])
    for features in (channels, 2 * _HIDDEN):
        x = graph.recurrent(x, features)
    head = graph.weight((2 * _HIDDEN, CLASSES), (2 * _HIDDEN) ** -0.5 * 8)
    logits = graph.node("MatMul", x, head)
    graph.node("LogSoftmax", logits, output="text", axis=-1)
    tensor = onnx.helper.make_tensor_value_info
    made = onnx.helper.make_graph(
        graph.nodes,
        "crnn",
        [tensor("line", onnx.TensorProto.FLOAT, ["batch", 1, 32, "width"])],
        [tensor("text", onnx.TensorProto.FLOAT, ["steps", "batch", CLASSES])],
        graph.weights,
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(made, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
