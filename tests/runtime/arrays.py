"""Arrays as other libraries hand them in, and models that take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from onnx import TensorProto, helper

import tvm_edge
from tests.onnx_models import make_model

SHAPE = (4, 16)
CPU, CUDA = 1, 2  # DLPack's numbers


def operator(
    name: str, dtype: int = TensorProto.FLOAT, target: str = "llvm"
) -> tvm_edge.CompiledModel:
    """``y = name(x)``, or ``name(x, x)`` for operators of two operands."""
    operands = ["x", "x"] if name in ("Add", "Or") else ["x"]
    model = make_model(
        [helper.make_node(name, operands, ["y"], name="op")],
        {"x": SHAPE},
        ["y"],
        dtypes={"x": dtype, "y": dtype},
    )
    return tvm_edge.compile(model, target)


def values(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype("float32")


def aligned(shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """An array on 64 bytes, filled with random numbers."""
    array = np.from_dlpack(tvm.runtime.empty(shape, "float32"))
    array[...] = np.random.default_rng(1).standard_normal(shape)
    return array


class Producer:
    """Another library's array, as the protocol of 2023 has it."""

    def __init__(self, data: Any, device: tuple[int, int] | None = None) -> None:
        self.data = data
        self.device = device or data.__dlpack_device__()
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        accepted = {k: v for k, v in options.items() if k in ("max_version", "copy")}
        return self.data.__dlpack__(**accepted)


class OldProducer(Producer):
    """Before DLPack 1.0 there was no ``max_version``, and no ``dl_device``."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        self.asked.append({"stream": stream})
        return self.data.__dlpack__()


def placed_inputs(model: tvm_edge.CompiledModel, inputs: dict[str, Any]) -> Any:
    """Inputs where kernels take them."""
    return model._session.place(model._every, model._every.bind(inputs, model._input_devices))
