"""Recurrent networks of sound and text: state in and out, branches by sample rate, CTC heads."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.models.export_graph import INT64_MAX, ExportGraph
from tests.models.registry import Exported, exported


def zero_state(g: ExportGraph, x: str, layers: int, hidden: int) -> str:
    """``torch.zeros(layers, x.size(1), hidden)`` as torch traces an absent state."""
    shape = g.op(
        "Concat", g.const([layers]), g.unsqueeze(g.dim(x, 1), 0), g.const([hidden]), axis=0
    )
    return g.op("Expand", g.const([[[0.0]]]), shape)


def recurrent(
    g: ExportGraph, kind: str, x: str, state: list[str], sizes: tuple[int, int], both: bool = False
) -> tuple[str, ...]:
    """An LSTM or GRU of (t, n, c) with torch's attributes; the result has no axis of directions."""
    inputs, hidden = sizes
    directions, gates = 1 + both, 4 if kind == "LSTM" else 3
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    y, *last = g.ops(
        kind,
        x,
        g.weight(directions, gates * hidden, inputs, scale=inputs**-0.5),
        g.weight(directions, gates * hidden, hidden, scale=hidden**-0.5),
        g.weight(directions, 2 * gates * hidden, scale=0.1),
        "",
        *state,
        outputs=2 + (kind == "LSTM"),
        direction="bidirectional" if both else "forward",
        hidden_size=hidden,
        **more,
    )
    if both:
        y = g.op("Reshape", g.transpose(y, 0, 2, 1, 3), g.const([0, 0, -1]))
    else:
        y = g.squeeze(y, 1)
    return (y, *last)


@exported
def silero_vad(seed: int) -> Exported:
    """The sample rate chooses a network: spectrum, encoder, LSTM with a state, decoder."""
    g = ExportGraph(seed, 16)
    sound = g.input("input", g.normal(1, 64, scale=0.3), ["batch", "sequence"])
    state = g.input("state", g.normal(2, 1, 8, scale=0.5), [2, "batch", 8])
    rate = g.input("sr", np.array(16000))
    is_16k = g.op("Equal", rate, g.const(16000))
    results = []
    for window in (16, 8):
        b = g.branch()
        # Short-time Fourier transform: a reflected end, and a convolution by sines and cosines.
        x = b.op("Pad", sound, b.const([0, 0, 0, window]), mode="reflect")
        bins = window // 2 + 1
        k, n = np.mgrid[:bins, :window]
        angle = 2 * np.pi * k * n / window
        basis = np.concatenate([np.cos(angle), -np.sin(angle)])[:, None].astype("float32")
        x = b.op(
            "Conv", b.unsqueeze(x, 1), b.held(basis), kernel_shape=[window], strides=[window // 2]
        )
        real, imaginary = (b.slice(x, i * bins, (i + 1) * bins, 1) for i in (0, 1))
        power = b.op("Add", b.op("Pow", real, b.const(2.0)), b.op("Pow", imaginary, b.const(2.0)))
        x = b.op("Sqrt", power)
        x = b.op(
            "Relu",
            b.op("Conv", x, b.weight(8, bins, 3), b.weight(8), kernel_shape=[3], pads=[1, 1],
                 strides=[2]),
        )  # fmt: skip
        x = b.transpose(x, 2, 0, 1)
        old = [b.unsqueeze(b.op("Gather", state, b.const(i), axis=0), 0) for i in (0, 1)]
        y, hidden, cell = recurrent(b, "LSTM", x, old, (8, 8))
        new = b.op("Concat", hidden, cell, axis=0)
        y = b.op("Relu", b.transpose(y, 1, 2, 0))
        logits = b.op("Conv", y, b.weight(1, 8, 1), b.weight(1), kernel_shape=[1])
        speech = b.reduce("ReduceMean", b.op("Sigmoid", b.squeeze(logits, 1)), 1)
        results.append(b.body(f"rate{window}", speech, new))
    speech, new = g.ops("If", is_16k, outputs=2, then_branch=results[0], else_branch=results[1])
    return g.model(speech, new, ranks=(2, 3))


@exported
def lstm_ctc(seed: int) -> Exported:
    """Spectra through two layers of LSTM of both directions; log-softmax, and the best path."""
    g = ExportGraph(seed, 14)
    spectra = g.input("spectra", g.normal(2, 12, 10), ["batch", "time", 10])
    x = g.op("Relu", g.linear(spectra, 10, 12))
    x = g.transpose(x, 1, 0, 2)
    for inputs in (12, 16):
        state = [zero_state(g, x, 2, 8) for _ in range(2)]
        x = recurrent(g, "LSTM", x, state, (inputs, 8), both=True)[0]
    x = g.transpose(x, 1, 0, 2)
    scores = g.op("LogSoftmax", g.linear(x, 16, 11), axis=2)
    return g.model(scores, g.op("ArgMax", scores, axis=2, keepdims=0), ranks=(3, 2))


@exported
def crnn_gru(seed: int) -> Exported:
    """Text of a picture: columns of features, GRU with a projection between layers."""
    g = ExportGraph(seed, 11)
    x = g.input("image", g.random.random((1, 1, 16, 32)).astype("float32"), [1, 1, 16, "width"])
    x = g.op("Relu", g.conv(x, 1, 8, 3))
    x = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = g.op("Relu", g.batch_norm(g.conv(x, 8, 8, 3, bias=False), 8))
    x = g.op("MaxPool", x, kernel_shape=[4, 1], strides=[4, 1])
    # AdaptiveAvgPool2d((None, 1)) of EasyOCR after the permutation.
    x = g.transpose(x, 0, 3, 1, 2)
    x = g.op("ReduceMean", x, axes=[3], keepdims=0)
    x = g.transpose(x, 1, 0, 2)
    for inputs in (8, 8):
        y = recurrent(g, "GRU", x, [zero_state(g, x, 2, 8)], (inputs, 8), both=True)[0]
        flat = g.view(y, g.op("Mul", g.dim(y, 0), g.dim(y, 1)), 16)
        x = g.view(g.gemm(flat, 16, 8), g.dim(y, 0), g.dim(y, 1), -1)
    return g.model(g.op("Softmax", g.transpose(g.linear(x, 8, 12), 1, 0, 2), axis=2), ranks=(3,))


@exported
def keyword_spotter(seed: int) -> Exported:
    """A streaming network: its buffers of past frames are inputs and outputs."""
    g = ExportGraph(seed, 13)
    frame = g.input("frames", g.normal(1, 8, 4))
    cache = g.input("cache", g.normal(2, 1, 8, 4))
    x, caches = frame, []
    for layer in range(2):
        past = g.op("Gather", cache, g.const(layer), axis=0)
        x = g.op("Concat", past, x, axis=2)
        caches.append(g.unsqueeze(g.slice(x, -4, INT64_MAX, 2), 0))
        dilation = 1 + layer
        y = g.op(
            "Conv", x, g.weight(8, 1, 3), g.weight(8), dilations=[dilation], group=8,
            kernel_shape=[3], pads=[0, 0], strides=[1],
        )  # fmt: skip
        y = g.op("Conv", g.op("Relu", y), g.weight(8, 8, 1), g.weight(8), kernel_shape=[1])
        x = g.op("Relu", g.slice(y, -4, INT64_MAX, 2))
    pooled = g.op("ReduceMax", x, axes=[2], keepdims=0)
    logits = g.gemm(pooled, 8, 5)
    best = g.op("Cast", g.op("ArgMax", logits, axis=1, keepdims=0), to=TensorProto.INT32)
    return g.model(g.op("Softmax", logits, axis=1), best, g.op("Concat", *caches, axis=0))
