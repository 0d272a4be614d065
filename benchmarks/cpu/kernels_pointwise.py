"""Cases of functions, norms, softmax, movements and recurrent layers for ``cpu_kernels``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import onnx

from benchmarks.cpu.kernel_cases import Case, Nodes, model, uniform

__all__ = ["CASES"]

_FUNCTIONS = (
    *("Erf", "Gelu", "Tanh", "Sigmoid", "HardSwish", "Softplus", "Exp", "Log", "Mish"),
    *("Elu", "Softsign", "Sqrt"),
)
_IMAGE = (1, 256, 56, 56)


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _unary(op: str, shape: Sequence[int]) -> onnx.ModelProto:
    nodes: Nodes = [(op, ["x"], ["y"], {})]
    if op in ("Log", "Sqrt"):
        nodes = [("Abs", ["x"], ["a"], {}), (op, ["a"], ["y"], {})]
    return model(nodes, {"x": shape})


def _erf_gelu(shape: Sequence[int]) -> onnx.ModelProto:
    """GELU as exporters before opset 20 write it."""
    nodes: Nodes = [
        ("Div", ["x", "root"], ["d"], {}),
        ("Erf", ["d"], ["e"], {}),
        ("Add", ["e", "one"], ["a"], {}),
        ("Mul", ["x", "a"], ["m"], {}),
        ("Mul", ["m", "half"], ["y"], {}),
    ]
    numbers = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    return model(nodes, {"x": shape}, {k: np.float32(v) for k, v in numbers.items()}, 14)


def _silu(shape: Sequence[int]) -> onnx.ModelProto:
    return model([("Sigmoid", ["x"], ["s"], {}), ("Mul", ["x", "s"], ["y"], {})], {"x": shape})


def _conv(act: str, channels: int, size: int, kernel: int) -> onnx.ModelProto:
    nodes: list = [("Conv", ["x", "w", "b"], ["c"], {"pads": [kernel // 2] * 4})]
    if act == "SiLU":
        nodes += [("Sigmoid", ["c"], ["s"], {}), ("Mul", ["c", "s"], ["y"], {})]
    else:
        nodes += [(act, ["c"], ["y"], {})]
    weights = {"w": uniform(channels, channels, kernel, kernel), "b": uniform(channels)}
    return model(nodes, {"x": (1, channels, size, size)}, weights)


def _layer_norm(shape: Sequence[int]) -> onnx.ModelProto:
    weights = {"s": uniform(shape[-1]), "b": uniform(shape[-1])}
    return model([("LayerNormalization", ["x", "s", "b"], ["y"], {})], {"x": shape}, weights)


def _rms_norm(shape: Sequence[int]) -> onnx.ModelProto:
    nodes: Nodes = [
        ("Mul", ["x", "x"], ["q"], {}),
        ("ReduceMean", ["q", "axes"], ["m"], {"keepdims": 1}),
        ("Add", ["m", "e"], ["a"], {}),
        ("Sqrt", ["a"], ["r"], {}),
        ("Div", ["x", "r"], ["d"], {}),
        ("Mul", ["d", "s"], ["y"], {}),
    ]
    weights = {"axes": np.array([-1]), "e": np.float32(1e-5), "s": uniform(shape[-1])}
    return model(nodes, {"x": shape}, weights)


def _group_norm(shape: Sequence[int], groups: int) -> onnx.ModelProto:
    """As PyTorch's exporter writes it."""
    nodes: Nodes = [
        ("Reshape", ["x", "to"], ["r"], {}),
        ("InstanceNormalization", ["r", "ones", "zeros"], ["n"], {}),
        ("Reshape", ["n", "back"], ["o"], {}),
        ("Mul", ["o", "s"], ["m"], {}),
        ("Add", ["m", "b"], ["y"], {}),
    ]
    channels = shape[1]
    weights = {
        "to": np.array([shape[0], groups, -1]),
        "back": np.array(shape),
        "ones": np.ones(groups, "f4"),
        "zeros": np.zeros(groups, "f4"),
        "s": uniform(channels, 1, 1),
        "b": uniform(channels, 1, 1),
    }
    return model(nodes, {"x": shape}, weights)


def _instance_norm(shape: Sequence[int]) -> onnx.ModelProto:
    weights = {"s": uniform(shape[1]), "b": uniform(shape[1])}
    return model([("InstanceNormalization", ["x", "s", "b"], ["y"], {})], {"x": shape}, weights)


def _axis(op: str, shape: Sequence[int], axis: int) -> onnx.ModelProto:
    return model([(op, ["x"], ["y"], {"axis": axis})], {"x": shape})


def _resize(shape: Sequence[int], scale: float, mode: str) -> onnx.ModelProto:
    where = "asymmetric" if mode == "nearest" else "half_pixel"
    attributes = {"mode": mode, "coordinate_transformation_mode": where, "nearest_mode": "floor"}
    weights = {"scales": np.array([1, 1, scale, scale], np.float32)}
    return model([("Resize", ["x", "", "scales"], ["y"], attributes)], {"x": shape}, weights)


def _shuffle(shape: Sequence[int], block: int, op: str) -> onnx.ModelProto:
    attributes = {"blocksize": block, **({"mode": "CRD"} if op == "DepthToSpace" else {})}
    return model([(op, ["x"], ["y"], attributes)], {"x": shape})


def _windows(size: int, channels: int, window: int) -> onnx.ModelProto:
    """Partition of an image into windows, channels last (Swin)."""
    count = size // window
    nodes: Nodes = [
        ("Reshape", ["x", "to"], ["r"], {}),
        ("Transpose", ["r"], ["t"], {"perm": [0, 1, 3, 2, 4, 5]}),
        ("Reshape", ["t", "out"], ["y"], {}),
    ]
    weights = {
        "to": np.array([1, count, window, count, window, channels]),
        "out": np.array([count * count, window * window, channels]),
    }
    return model(nodes, {"x": (1, size, size, channels)}, weights)


def _roll(size: int, channels: int, shift: int) -> onnx.ModelProto:
    """Roll of an image's lines, channels last (Swin), as exporters write it."""
    nodes: Nodes = [
        ("Slice", ["x", "s", "end", "axis"], ["a"], {}),
        ("Slice", ["x", "zero", "s", "axis"], ["b"], {}),
        ("Concat", ["a", "b"], ["y"], {"axis": 1}),
    ]
    numbers = {"s": shift, "end": size, "axis": 1, "zero": 0}
    weights = {name: np.array([value]) for name, value in numbers.items()}
    return model(nodes, {"x": (1, size, size, channels)}, weights)


def _pad(shape: Sequence[int], mode: str) -> onnx.ModelProto:
    weights = {"pads": np.array([0, 0, 3, 3, 0, 0, 3, 3])}
    return model([("Pad", ["x", "pads"], ["y"], {"mode": mode})], {"x": shape}, weights)


def _concat(shapes: Sequence[Sequence[int]], axis: int) -> onnx.ModelProto:
    names = [f"x{number}" for number in range(len(shapes))]
    nodes: Nodes = [("Concat", names, ["y"], {"axis": axis})]
    return model(nodes, dict(zip(names, shapes, strict=True)))


def _transpose(shape: Sequence[int], perm: Sequence[int]) -> onnx.ModelProto:
    return model([("Transpose", ["x"], ["y"], {"perm": perm})], {"x": shape})


def _recurrent(
    op: str, steps: int, features: int, hidden: int, batch: int = 1, directions: int = 1
) -> onnx.ModelProto:
    gates = {"LSTM": 4, "GRU": 3}[op]
    attributes = {
        "hidden_size": hidden,
        "direction": "bidirectional" if directions == 2 else "forward",
        **({"linear_before_reset": 1} if op == "GRU" else {}),
    }
    weights = {
        "w": uniform(directions, gates * hidden, features),
        "r": uniform(directions, gates * hidden, hidden),
        "b": uniform(directions, 2 * gates * hidden),
    }
    inputs = {"x": (steps, batch, features)}
    return model([(op, ["x", "w", "r", "b"], ["y"], attributes)], inputs, weights)


def _cases() -> Mapping[str, Case]:
    cases: dict[str, Case] = {
        f"{op} {_shape(_IMAGE)}": partial(_unary, op, _IMAGE) for op in _FUNCTIONS
    }
    for op, shape in (
        *(("Erf", (1, 192, 92, 92)), ("Gelu", (1, 197, 3072)), ("Tanh", (1, 8, 31, 33))),
        *(("Sigmoid", (1, 80, 8400)), ("Exp", (1, 12, 197, 197)), ("Softplus", (1, 3, 17, 19))),
        ("Exp", (1, 21, 65, 65)),
    ):
        cases[f"{op} {_shape(shape)}"] = partial(_unary, op, shape)
    for shape in ((1, 192, 92, 92), (1, 197, 3072)):
        cases[f"GELU of Erf {_shape(shape)}"] = partial(_erf_gelu, shape)
    for shape in ((1, 64, 80, 80), (1, 32, 37, 41), (1, 48, 45, 45)):
        cases[f"SiLU {_shape(shape)}"] = partial(_silu, shape)
    for act in ("SiLU", "HardSwish", "Gelu", "Tanh", "Softplus"):
        cases[f"Conv 1x1 96 28x28 {act}"] = partial(_conv, act, 96, 28, 1)
    cases["Conv 1x1 72 20x20 Gelu"] = partial(_conv, "Gelu", 72, 20, 1)
    cases["Conv 3x3 64 56x56 SiLU"] = partial(_conv, "SiLU", 64, 56, 3)
    for shape in ((1, 197, 768), (1, 3136, 96), (1, 49, 768), (1, 100, 257)):
        cases[f"LayerNorm {_shape(shape)}"] = partial(_layer_norm, shape)
    cases["RMSNorm 1x197x768"] = partial(_rms_norm, (1, 197, 768))
    cases["GroupNorm 32 1x256x56x56"] = partial(_group_norm, (1, 256, 56, 56), 32)
    cases["GroupNorm 1 1x64x28x28"] = partial(_group_norm, (1, 64, 28, 28), 1)
    cases["InstanceNorm 1x64x112x112"] = partial(_instance_norm, (1, 64, 112, 112))
    for op, shape, axis in (
        *(("Softmax", (1, 12, 197, 197), -1), ("Softmax", (64, 3, 49, 49), -1)),
        *(("Softmax", (1, 21, 128, 128), 1), ("Softmax", (1, 1000), -1)),
        *(("Softmax", (8, 100, 91), -1), ("Softmax", (1, 64, 300, 4), 2)),
        *(("LogSoftmax", (1, 160, 6625), -1), ("LogSoftmax", (1, 19, 65, 65), 1)),
    ):
        cases[f"{op} {_shape(shape)} axis {axis}"] = partial(_axis, op, shape, axis)
    for shape, scale, mode in (
        *(((1, 256, 20, 20), 2.0, "nearest"), ((1, 128, 40, 40), 2.0, "nearest")),
        *(((1, 64, 32, 32), 4.0, "linear"), ((1, 21, 33, 33), 8.0, "linear")),
    ):
        cases[f"Resize {mode} {scale:g} {_shape(shape)}"] = partial(_resize, shape, scale, mode)
    cases["DepthToSpace 2 1x256x64x64"] = partial(_shuffle, (1, 256, 64, 64), 2, "DepthToSpace")
    cases["DepthToSpace 3 1x27x112x112"] = partial(_shuffle, (1, 27, 112, 112), 3, "DepthToSpace")
    cases["SpaceToDepth 2 1x64x80x80"] = partial(_shuffle, (1, 64, 80, 80), 2, "SpaceToDepth")
    cases["Windows 7 56x56x96"] = partial(_windows, 56, 96, 7)
    cases["Windows 8 64x64x64"] = partial(_windows, 64, 64, 8)
    cases["Roll 56x56x96"] = partial(_roll, 56, 96, 3)
    for mode in ("constant", "reflect", "edge"):
        cases[f"Pad {mode} 1x64x56x56"] = partial(_pad, (1, 64, 56, 56), mode)
    cases["Concat channels 1x128x40x40"] = partial(_concat, [(1, 128, 40, 40)] * 3, 1)
    cases["Concat last 1x8400x64+80"] = partial(_concat, [(1, 8400, 64), (1, 8400, 80)], 2)
    cases["Transpose 1x197x12x64"] = partial(_transpose, (1, 197, 12, 64), (0, 2, 1, 3))
    cases["Transpose NCHW to NHWC 1x96x56x56"] = partial(_transpose, (1, 96, 56, 56), (0, 2, 3, 1))
    cases["Transpose NHWC to NCHW 1x56x56x96"] = partial(_transpose, (1, 56, 56, 96), (0, 3, 1, 2))
    cases["Transpose NCHW to NHWC 1x40x37x53"] = partial(_transpose, (1, 40, 37, 53), (0, 2, 3, 1))
    cases["Transpose NHWC to NCHW 1x27x31x24"] = partial(_transpose, (1, 27, 31, 24), (0, 3, 1, 2))
    for op, steps, features, hidden in (
        *(("LSTM", 1, 128, 128), ("LSTM", 40, 256, 256), ("GRU", 60, 128, 96)),
        *(("LSTM", 100, 64, 48), ("LSTM", 30, 200, 320)),
    ):
        name = f"{op} {steps} steps {features} to {hidden}"
        cases[name] = partial(_recurrent, op, steps, features, hidden)
    cases["LSTM 25 steps 256 to 256 both ways"] = partial(_recurrent, "LSTM", 25, 256, 256, 1, 2)
    cases["LSTM 20 steps 16x128 to 128"] = partial(_recurrent, "LSTM", 20, 128, 128, 16)
    cases["GRU 50 steps 4x64 to 128"] = partial(_recurrent, "GRU", 50, 64, 128, 4)
    return cases


CASES: Mapping[str, Case] = _cases()
"""By name."""
