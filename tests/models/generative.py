"""Networks that make pictures: super-resolution, a diffusion model's block, style transfer."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

from tests.models.export_graph import ExportGraph
from tests.models.registry import Exported, exported

WIDTH = 8


@exported
def super_resolution(seed: int) -> Exported:
    """Convolutions with PReLU, DepthToSpace, beside a bicubic enlargement of the picture."""
    g = ExportGraph(seed, 12)
    image = g.image(1, 16, name="input", dynamic=True)
    x = g.conv(image, 1, WIDTH, 5)
    for _ in range(2):
        x = g.op("PRelu", x, g.held(g.random.random((WIDTH, 1, 1)).astype("float32")))
        x = g.conv(x, WIDTH, WIDTH, 3)
    x = g.op("DepthToSpace", g.conv(x, WIDTH, 9, 3), blocksize=3, mode="CRD")
    large = g.op(
        "Resize",
        image,
        g.const(np.zeros(0, "float32")),
        g.const([1.0, 1.0, 3.0, 3.0]),
        coordinate_transformation_mode="pytorch_half_pixel",
        cubic_coeff_a=-0.75,
        mode="cubic",
        nearest_mode="floor",
    )
    return g.model(g.op("Add", x, large))


@exported
def pixel_shuffle_old(seed: int) -> Exported:
    """The same shuffle before DepthToSpace had modes: Reshape, Transpose, Reshape with Shape."""
    g = ExportGraph(seed, 9)
    image = g.image(3, 12, name="input")
    x = g.op("LeakyRelu", g.conv(image, 3, WIDTH, 3), alpha=0.2)
    x = g.conv(x, WIDTH, 12, 3)
    batch, height, width = (g.dim(x, axis) for axis in (0, 2, 3))
    x = g.transpose(g.view(x, batch, 3, 2, 2, height, width), 0, 1, 4, 2, 5, 3)
    twice = [g.op("Mul", each, g.const(2)) for each in (height, width)]
    x = g.view(x, batch, 3, *twice)
    up = g.op("Upsample", image, g.const([1.0, 1.0, 2.0, 2.0]), mode="linear")
    return g.model(g.op("Tanh", g.op("Add", x, up)), ranks=(4,))


def group_norm(g: ExportGraph, x: str, channels: int, groups: int) -> str:
    """``nn.GroupNorm``: (n, groups, -1) through InstanceNormalization, back to Shape, scaled."""
    grouped = g.op("Reshape", x, g.const([0, groups, -1]))
    ones, zeros = (g.const(np.full(groups, v, "float32")) for v in (1, 0))
    normal = g.op("InstanceNormalization", grouped, ones, zeros, epsilon=1e-5)
    normal = g.op("Reshape", normal, g.op("Shape", x))
    scale, bias = (g.held(g.normal(channels, 1, 1)) for _ in range(2))
    return g.op("Add", g.op("Mul", normal, scale), bias)


def cross_attention(g: ExportGraph, x: str, context: str, inputs: int, width: int) -> str:
    """diffusers' attention: heads into the batch, scaled, softmax, Einsum's products by MatMul."""
    heads, own = 2, width // 2
    q = g.linear(x, width, width, bias=False)
    k, v = (g.linear(context, inputs, width, bias=False) for _ in range(2))
    batch = g.dim(x, 0)
    parts = []
    for each in (q, k, v):
        y = g.view(each, batch, g.dim(each, 1), heads, own)
        y = g.transpose(y, 0, 2, 1, 3)
        parts.append(g.view(y, g.op("Mul", batch, g.const(heads)), g.dim(each, 1), own))
    q, k, v = parts
    product = g.op("MatMul", q, g.transpose(k, 0, 2, 1))
    shares = g.op("Softmax", g.op("Mul", product, g.const(own**-0.5)), axis=-1)
    shares = g.op("Cast", shares, to=TensorProto.FLOAT)
    y = g.view(g.op("MatMul", shares, v), batch, heads, g.dim(q, 1), own)
    y = g.view(g.transpose(y, 0, 2, 1, 3), batch, g.dim(q, 1), width)
    return g.linear(y, width, width)


@exported
def diffusion_unet(seed: int) -> Exported:
    """A residual block with the step's embedding, and a transformer block that reads text."""
    g = ExportGraph(seed, 14)
    sample = g.input("sample", g.normal(2, 4, 8, 8), ["batch", 4, "height", "width"])
    step = g.input("timestep", np.array([7], "int64"))
    text = g.input("encoder_hidden_states", g.normal(2, 5, 12), ["batch", "sequence", 12])
    # Sine and cosine of the step, in diffusers' order.
    shape = g.vector(g.dim(sample, 0))
    steps = g.op("Cast", g.unsqueeze(g.op("Expand", step, shape), 1), to=TensorProto.FLOAT)
    rates = np.exp(-np.log(10000) * np.arange(4) / 4)[None].astype("float32")
    phase = g.op("Mul", steps, g.const(rates))
    both = g.op("Concat", g.op("Sin", phase), g.op("Cos", phase), axis=-1)
    cosines, sines = g.slice(both, 4, 2**63 - 1, 1), g.slice(both, 0, 4, 1)
    embedded = g.op("Concat", cosines, sines, axis=-1)
    embedded = g.gemm(g.silu(g.gemm(embedded, 8, 16)), 16, 16)
    x = g.conv(sample, 4, WIDTH, 3)
    y = g.conv(g.silu(group_norm(g, x, WIDTH, 4)), WIDTH, WIDTH, 3)
    y = g.op("Add", y, g.unsqueeze(g.unsqueeze(g.gemm(g.silu(embedded), 16, WIDTH), 2), 3))
    y = g.conv(g.silu(group_norm(g, y, WIDTH, 4)), WIDTH, WIDTH, 3)
    x = g.op("Div", g.op("Add", x, y), g.const(1.0))
    batch, height, width = (g.dim(x, axis) for axis in (0, 2, 3))
    flat = g.transpose(g.conv(group_norm(g, x, WIDTH, 4), WIDTH, WIDTH), 0, 2, 3, 1)
    flat = g.view(flat, batch, g.op("Mul", height, width), WIDTH)
    y = g.layer_norm(flat, WIDTH)
    flat = g.op("Add", cross_attention(g, y, y, WIDTH, WIDTH), flat)
    y = g.layer_norm(flat, WIDTH)
    flat = g.op("Add", cross_attention(g, y, text, 12, WIDTH), flat)
    # GEGLU: half of the channels gate the others, cut where Shape says.
    wide = g.linear(g.layer_norm(flat, WIDTH), WIDTH, 4 * WIDTH)
    length = g.op("Add", g.dim(wide, 2), g.const(1))
    half = g.unsqueeze(g.op("Div", length, g.const(2)), 0)
    left = g.op("Slice", wide, g.const([0]), half, g.const([2]))
    gate = g.op("Slice", wide, half, g.op("Mul", half, g.const([2])), g.const([2]))
    y = g.linear(g.op("Mul", left, g.gelu(gate)), 2 * WIDTH, WIDTH)
    y = g.transpose(g.view(g.op("Add", y, flat), batch, height, width, WIDTH), 0, 3, 1, 2)
    x = g.op("Add", g.conv(y, WIDTH, WIDTH), x)
    return g.model(g.conv(g.silu(group_norm(g, x, WIDTH, 4)), WIDTH, 4, 3), ranks=(4,))


@exported
def style_transfer(seed: int) -> Exported:
    """Reflected borders by a chain of pads, instance normalisation, nearest enlargement."""
    g = ExportGraph(seed, 11)
    x = g.image(size=16, name="input")

    def padded(x: str, by: int) -> str:
        # ``ReflectionPad2d``: pairs of torch, filled up, reversed and cast, as opset 11 traces it.
        pads = g.const([by] * 4)
        missing = g.op("Sub", g.const(8), g.const(4))
        zeros = g.op(
            "ConstantOfShape", g.view(missing, 1), value=numpy_helper.from_array(np.array([0]))
        )
        pairs = g.view(g.op("Concat", pads, zeros, axis=0), -1, 2)
        pairs = g.transpose(g.slice(pairs, -1, -(2**63) + 1, 0, -1), 1, 0)
        pads = g.op("Cast", g.view(pairs, -1), to=TensorProto.INT64)
        return g.op("Pad", x, pads, mode="reflect")

    def conv(x: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> str:
        y = padded(x, kernel // 2)
        y = g.conv(y, inputs, outputs, kernel, stride=stride, pads=[0] * 4)
        return g.op("InstanceNormalization", y, g.weight(outputs), g.weight(outputs), epsilon=1e-5)

    x = g.op("Relu", conv(x, 3, WIDTH, 5))
    y = g.op("Relu", conv(x, WIDTH, 2 * WIDTH, 3, 2))
    y = g.op("Add", y, conv(y, 2 * WIDTH, 2 * WIDTH, 3))
    y = g.op(
        "Resize",
        y,
        g.const(np.zeros(0, "float32")),
        g.const([1.0, 1.0, 2.0, 2.0]),
        coordinate_transformation_mode="asymmetric",
        cubic_coeff_a=-0.75,
        mode="nearest",
        nearest_mode="floor",
    )
    x = g.op("Relu", conv(y, 2 * WIDTH, WIDTH, 3))
    return g.model(g.conv(padded(x, 2), WIDTH, 3, 5, pads=[0] * 4), ranks=(4,))
