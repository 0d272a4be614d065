"""TensorFlow and Keras by tf2onnx: transposes to and from channels last, Resize, dilation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from tests.models.export_graph import ExportGraph
from tests.models.registry import Exported, exported

WIDTH = 8
FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def graph(seed: int, opset: int = 15) -> ExportGraph:
    return ExportGraph(seed, opset, "tf2onnx")


def image(g: ExportGraph, height: int = 16, width: int = 16) -> str:
    """An input of channels last with an open batch."""
    value = g.random.random((1, height, width, 3)).astype("float32")
    return g.input("input_1:0", value, ["unk__0", height, width, 3])


def same_conv(
    g: ExportGraph, x: str, inputs: int, outputs: int, stride: int = 1, group: int = 1
) -> str:
    """``padding="same"``: more padding after than before where the stride is 2."""
    pads = [1, 1, 1, 1] if stride == 1 else [0, 0, 1, 1]
    return g.conv(x, inputs, outputs, 3, stride=stride, group=group, pads=pads)


def relu6(g: ExportGraph, x: str) -> str:
    """``Relu6`` as Min and Max."""
    return g.op("Min", g.op("Relu", x), g.const(6.0))


@exported
def keras_mobilenet(seed: int) -> Exported:
    """A classifier of channels last: mean over places, squeezed, a product, softmax."""
    g = graph(seed)
    x = image(g)
    x = g.op("Sub", g.op("Mul", x, g.const(2.0)), g.const([1.0, 1.0, 1.0]))
    x = relu6(g, same_conv(g, g.transpose(x, *FIRST), 3, WIDTH, 2))
    x = relu6(g, same_conv(g, x, WIDTH, WIDTH, group=WIDTH))
    x = relu6(g, g.conv(x, WIDTH, 2 * WIDTH))
    # A part that stayed in channels last: gate by a mean, as a Lambda layer has it.
    y = g.transpose(x, *LAST)
    mean = g.reduce("ReduceMean", y, 1, 2)
    gate = g.op("Sigmoid", g.op("MatMul", mean, g.weight(2 * WIDTH, 2 * WIDTH, scale=0.3)))
    x = g.transpose(g.op("Mul", y, gate), *FIRST)
    x = g.op(
        "AveragePool",
        x,
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[0, 0, 1, 1],
        ceil_mode=0,
        count_include_pad=0,
    )
    x = g.squeeze(g.reduce("ReduceMean", x, 2, 3), 2, 3)
    x = g.op("Add", g.op("MatMul", x, g.weight(2 * WIDTH, 10, scale=0.3)), g.weight(10))
    return g.model(g.op("Softmax", x, axis=1))


def space_to_batch(g: ExportGraph, x: str, block: int, pads: Sequence[int]) -> str:
    """``SpaceToBatchND`` of channels last: Pad, Reshape, Transpose, Reshape."""
    top, bottom, left, right = pads
    x = g.op("Pad", x, g.const([0, top, left, 0, 0, bottom, right, 0]))
    side = (16 + top + bottom) // block
    x = g.op("Reshape", x, g.const([-1, side, block, side, block, WIDTH]))
    x = g.transpose(x, 2, 4, 0, 1, 3, 5)
    return g.op("Reshape", x, g.const([-1, side, side, WIDTH]))


def batch_to_space(g: ExportGraph, x: str, block: int, crop: int) -> str:
    """``BatchToSpaceND``: Reshape, Transpose, Reshape, Slice."""
    shape = g.op("Cast", g.op("Shape", x), to=TensorProto.INT32)
    side = g.op("Cast", g.slice(shape, 1, 2, 0), to=TensorProto.INT64)
    parts = g.op("Concat", g.const([block, block, -1]), side, side, g.const([WIDTH]), axis=0)
    x = g.transpose(g.op("Reshape", x, parts), 2, 3, 0, 4, 1, 5)
    whole = g.op("Mul", side, g.const([block]))
    x = g.op("Reshape", x, g.op("Concat", g.const([-1]), whole, whole, g.const([WIDTH]), axis=0))
    end = g.op("Sub", whole, g.const([crop]))
    return g.op("Slice", x, g.const([0, 0]), g.op("Concat", end, end, axis=0), g.const([1, 2]))


@exported
def tf_dilated(seed: int) -> Exported:
    """TensorFlow's dilated convolutions: space to batch, an undilated one, batch to space."""
    g = graph(seed, 12)
    x = g.op("Relu", same_conv(g, g.transpose(image(g), *FIRST), 3, WIDTH))
    x = g.transpose(x, *LAST)
    for block, pads in ((2, (2, 2, 2, 2)), (4, (4, 4, 4, 4))):
        y = space_to_batch(g, x, block, pads)
        y = g.conv(g.transpose(y, *FIRST), WIDTH, WIDTH, 3, pads=[0] * 4)
        y = g.op("Relu", batch_to_space(g, g.transpose(y, *LAST), block, 0))
        x = g.op("Add", x, y)
    return g.model(g.transpose(g.op("Sigmoid", g.conv(g.transpose(x, *FIRST), WIDTH, 1)), *LAST),
                   ranks=(4,))  # fmt: skip


def resized(g: ExportGraph, x: str, sizes: str, **how: str) -> str:
    """A Resize of channels last to (height, width), behind a Shape for the batch and channels."""
    y = g.transpose(x, *FIRST)
    lead = g.op("Slice", g.op("Shape", y), g.const([0]), g.const([2]))
    wanted = g.op("Concat", lead, g.op("Cast", sizes, to=TensorProto.INT64), axis=0)
    empty = g.const(np.zeros(0, "float32"))
    return g.transpose(g.op("Resize", y, empty, empty, wanted, **how), *LAST)


@exported
def keras_resizing(seed: int) -> Exported:
    """UpSampling2D and tf.image.resize, old and new, to sizes that are calculated from Shape."""
    g = graph(seed, 12)
    x = g.transpose(g.op("Relu", same_conv(g, g.transpose(image(g), *FIRST), 3, WIDTH, 2)), *LAST)
    sides = g.op("Cast", g.slice(g.op("Shape", x), 1, 3, 0), to=TensorProto.INT32)
    double = g.op("Mul", sides, g.const([2, 2], "int32"))
    odd = g.op("Add", double, g.const([3, 1], "int32"))
    real = g.op("Cast", sides, to=TensorProto.FLOAT)
    half = g.op("Cast", g.op("Floor", g.op("Mul", real, g.const(1.5))), to=TensorProto.INT32)
    nearest = {"mode": "nearest", "nearest_mode": "floor"}
    results = [
        resized(g, x, double, coordinate_transformation_mode="asymmetric", **nearest),
        resized(g, x, odd, coordinate_transformation_mode="half_pixel", **nearest),
        resized(g, x, half, coordinate_transformation_mode="tf_half_pixel_for_nn", **nearest),
        resized(g, x, odd, coordinate_transformation_mode="asymmetric", mode="linear"),
        resized(g, x, half, coordinate_transformation_mode="half_pixel", mode="linear"),
        resized(g, x, double, coordinate_transformation_mode="align_corners", mode="linear"),
    ]
    return g.model(*results, ranks=(4,) * len(results))


@exported
def keras_separable_lstm(seed: int) -> Exported:
    """Keras' TimeDistributed convolution before an LSTM, with frames folded into the batch."""
    g = graph(seed)
    frames = g.random.random((1, 5, 8, 8, 3)).astype("float32")
    x = g.input("frames:0", frames, ["unk__0", 5, 8, 8, 3])
    x = g.op("Reshape", x, g.const([-1, 8, 8, 3]))
    x = g.op("Relu", same_conv(g, g.transpose(x, *FIRST), 3, WIDTH, 2))
    x = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = g.op("Reshape", g.transpose(x, *LAST), g.const([-1, 5, 4 * WIDTH]))
    batch = g.slice(g.op("Shape", x), 0, 1, 0)
    shape = g.op("Concat", batch, g.const([8]), axis=0)
    state = g.unsqueeze(g.op("Expand", g.const([[0.0]]), shape), 0)
    _, last, _ = g.ops(
        "LSTM",
        g.transpose(x, 1, 0, 2),
        g.weight(1, 32, 4 * WIDTH, scale=0.2),
        g.weight(1, 32, 8, scale=0.3),
        g.weight(1, 64, scale=0.1),
        "",
        state,
        state,
        outputs=3,
        direction="forward",
        hidden_size=8,
    )
    x = g.op("MatMul", g.squeeze(last, 0), g.weight(8, 4, scale=0.4))
    return g.model(g.op("Softmax", x, axis=1), ranks=(2,))
