"""Inputs and outputs that are sequences of tensors, or optional.

A model that has them is written out for each combination of lengths that is handed in, as a model
that has an input or an output for each tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from tvm_edge.errors import (
    InputError,
    InvalidModelError,
    TvmEdgeError,
    UnsupportedOperatorError,
    one_line,
)
from tvm_edge.onnx_backend.sequence_operators import SEQUENCE_OPERATORS
from tvm_edge.onnx_backend.write_out import Value, Writer, decides

__all__ = ["WrittenOut", "checked_inputs", "has_sequences", "refuse_other_elements", "signature"]

_OTHER = ("sequence_type", "optional_type")


class WrittenOut:
    """A model of tensors for inputs at hand, which :func:`checked_inputs` has seen.

    Attributes
    ----------
    proto : onnx.ModelProto
        The model.
    """

    def __init__(self, proto: onnx.ModelProto, inputs: Mapping[str, Any]) -> None:
        names: dict[str, Value] = {}
        flat: dict[str, np.ndarray] = {}
        for value in proto.graph.input:
            if value.name in inputs:
                names[value.name] = _named(value.name, inputs[value.name], flat)
        writer = Writer(proto, flat, SEQUENCE_OPERATORS)
        try:
            results = writer.graph(proto.graph, names)
        except TvmEdgeError:
            raise
        # Whatever a damaged field happens to cause, here and in ONNX's reference.
        except Exception as err:
            raise InvalidModelError(
                f"the sequences of the model cannot be written out ({type(err).__name__}: "
                f"{one_line(err)}); export the model again"
            ) from err
        self._outputs: list[str] = []
        self._results = [self._tensors(writer, value) for value in results]
        self.proto = onnx.shape_inference.infer_shapes(writer.model(self._outputs))

    def _tensors(self, writer: Writer, value: Value) -> Value:
        """Replace names by places among the outputs, each tensor of a node of its own."""
        if isinstance(value, list):
            return [self._tensors(writer, each) for each in value]
        if value is None:
            return None
        self._outputs += writer.emit("Identity", [value])
        return len(self._outputs) - 1

    def inputs(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the tensors of inputs of this structure, by the names that the model has."""
        flat: dict[str, np.ndarray] = {}
        for name, value in inputs.items():
            _named(name, value, flat)
        return flat

    def results(self, outputs: tuple[Any, ...]) -> list[Any]:
        """Return the outputs of the original model."""
        return [_filled(value, outputs) for value in self._results]


def has_sequences(proto: onnx.ModelProto) -> bool:
    """Return whether an input or an output is a sequence or an optional."""
    return any(
        value.type.WhichOneof("value") in _OTHER
        for value in (*proto.graph.input, *proto.graph.output)
    )


def refuse_other_elements(proto: onnx.ModelProto) -> None:
    """Refuse sequences and optionals of other than tensors of numbers.

    Raises
    ------
    UnsupportedOperatorError
    """
    for value in (*proto.graph.input, *proto.graph.output):
        ty = _element(value.type)
        kind = ty.WhichOneof("value")
        if kind != "tensor_type" or ty.tensor_type.elem_type == onnx.TensorProto.STRING:
            what = "strings" if kind == "tensor_type" else kind
            raise UnsupportedOperatorError(
                f"{value.name!r} is of {what}, and only tensors of numbers are supported, by "
                "themselves or in sequences; make it one in the exporter"
            )


def checked_inputs(proto: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs as arrays, lists of them, and ``None``.

    Raises
    ------
    InputError
        One is no sequence, or has elements of another type than the model says.
    """
    types = {value.name: value.type for value in proto.graph.input}
    return {name: _checked(name, value, types[name]) for name, value in inputs.items()}


def signature(value: Any) -> Any:
    """Return what a model is written out for: structure, shapes, types, and small whole numbers."""
    if isinstance(value, Mapping):
        return tuple((name, signature(each)) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(signature(each) for each in value)
    if value is None:
        return None
    return (value.shape, value.dtype.name, value.tobytes() if decides(value) else b"")


def _element(ty: onnx.TypeProto) -> onnx.TypeProto:
    """Return the type inside sequences and optionals."""
    while (kind := ty.WhichOneof("value")) in _OTHER:
        ty = getattr(ty, kind).elem_type
    return ty


def _array(value: Any) -> np.ndarray:
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    return np.from_dlpack(value)


def _checked(name: str, value: Any, ty: onnx.TypeProto) -> Any:
    """Return an input, which must have the structure and the element type of the model's."""
    kind = ty.WhichOneof("value")
    if kind == "optional_type":
        return None if value is None else _checked(name, value, ty.optional_type.elem_type)
    if kind == "sequence_type":
        if not isinstance(value, (list, tuple)):
            raise InputError(
                f"the input {name!r} is a {type(value).__name__}, and the model takes a sequence; "
                "pass a list of arrays",
                name=name,
                expected="a list",
                got=type(value).__name__,
            )
        return [_checked(name, each, ty.sequence_type.elem_type) for each in value]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(ty.tensor_type.elem_type)
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        raise InputError(
            f"the input {name!r} has a {type(value).__name__}, and the model takes arrays of "
            f"{dtype.name}; pass NumPy arrays",
            name=name,
            expected="an array",
            got=type(value).__name__,
        )
    array = _array(value)
    if array.dtype != dtype:
        raise InputError(
            f"the input {name!r} has the type {array.dtype}, and the model takes {dtype.name}; "
            f"convert it with .astype({dtype.name!r})",
            name=name,
            expected=dtype.name,
            got=str(array.dtype),
        )
    return array


def _named(name: str, value: Any, flat: dict[str, np.ndarray]) -> Value:
    """Name every tensor of an input, and collect them in `flat`."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [_named(f"{name}[{i}]", each, flat) for i, each in enumerate(value)]
    flat[name] = value
    return name


def _filled(value: Any, outputs: tuple[Any, ...]) -> Any:
    """Replace places among the outputs by the tensors."""
    if isinstance(value, list):
        return [_filled(each, outputs) for each in value]
    return None if value is None else outputs[value]
