"""Inputs of an ONNX model: their shapes, and values that become constants, as told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tvm_edge.errors import InputError, UnsupportedOperatorError, near_matches
from tvm_edge.frontend.given_inputs import GivenLength
from tvm_edge.report import Dim
from tvm_edge.report.dims import by_name
from tvm_edge.report.tensors import shape_text

if TYPE_CHECKING:
    import onnx

__all__ = ["fix_shapes", "fix_values"]


def fix_values(proto: onnx.ModelProto, values: Mapping[str, np.ndarray]) -> None:
    """Make inputs constants of the model.

    Parameters
    ----------
    proto : onnx.ModelProto
        Changed in place.
    values : mapping of str to numpy.ndarray

    Raises
    ------
    InputError
        No input of that name, or a value of another shape or type.
    """
    import onnx.helper
    import onnx.numpy_helper

    inputs = _inputs(proto)
    for name, value in values.items():
        if name not in inputs:
            raise _unknown("input_values", name, inputs)
        tensor_type = inputs[name].type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor_type.elem_type)
        dims = _dims(inputs[name])
        fits = len(dims) == value.ndim and all(
            isinstance(dim, str) or dim == length
            for dim, length in zip(dims, value.shape, strict=False)
        )
        same_kind = value.dtype == dtype or (value.dtype.kind in "biuf" and value.size < 2)
        if (tensor_type.HasField("shape") and not fits) or not same_kind:
            raise InputError(
                f"input_values gives {name!r} {value.dtype} of the shape {value.shape}, and the "
                f"model takes {dtype.name} of {shape_text(dims)}; give it such a value",
                name=name,
                expected=f"{dtype.name} {shape_text(dims)}",
                got=f"{value.dtype} {value.shape}",
            )
        proto.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(dtype), name))
        proto.graph.input.remove(inputs[name])


def fix_shapes(
    proto: onnx.ModelProto, shapes: Mapping[str, Sequence[GivenLength]]
) -> dict[str, Dim]:
    """Write `shapes` into the graph's inputs; afterwards a dimension is a number or has a name.

    Returns
    -------
    dict of str to Dim
        The open dimensions by name, each with a typical length.

    Raises
    ------
    InputError, UnsupportedOperatorError
    """
    values = _inputs(proto)
    for name in shapes:
        if name not in values:
            raise _unknown("input_shapes", name, values)
    for name, value in values.items():
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value") or "untyped"
            raise UnsupportedOperatorError(
                f"the input {name!r} is {kind}, and only tensors are supported; "
                "make it a tensor in the exporter"
            )
        if name not in shapes and not value.type.tensor_type.HasField("shape"):
            raise InputError(
                f"the input {name!r} has no shape in the model; say it with "
                f"input_shapes={{{name!r}: (...)}}",
                name=name,
            )
    found = {name: _given(value, shapes.get(name)) for name, value in values.items()}
    dims = by_name(d for given in found.values() for d in given if isinstance(d, Dim))
    batches = {str(given[0]) for given in found.values() if len(given) > 1}
    for given in found.values():
        for length in given:
            if isinstance(length, str):  # batches may be empty
                dims.setdefault(length, Dim(length, min=0 if length in batches else 1))
    for name, value in values.items():
        _write(value, found[name])
    if shapes:
        # Shapes that the exporter wrote for the old input would contradict the new one.
        proto.graph.ClearField("value_info")
        for output in proto.graph.output:
            for dim in output.type.tensor_type.shape.dim:
                dim.Clear()
    return {
        name: replace(dim, typical=dim.assumed(is_batch=name in batches))
        for name, dim in dims.items()
    }


def _given(
    value: onnx.ValueInfoProto, shape: Sequence[GivenLength] | None
) -> list[int | str | Dim]:
    """Return the shape of an input: as told, else as the model has it."""
    name = value.name
    dims = _dims(value)
    given: Sequence[GivenLength] = dims if shape is None else shape
    if value.type.tensor_type.HasField("shape") and len(given) != len(dims):
        raise InputError(
            f"input_shapes gives {name!r} {len(given)} dimensions {_text_of(given)}, and the "
            f"model has {len(dims)}: {shape_text(dims)}; give one length per dimension",
            name=name,
            expected=shape_text(dims),
            got=_text_of(given),
        )
    known = dims or ["?"] * len(given)
    # Exporters write 0 for a length that they do not know: who means it says it again.
    if any(
        length == 0 and (shape is None or its != 0)
        for length, its in zip(given, known, strict=True)
    ):
        raise InputError(
            f"the input {name!r} has the shape {_text_of(given)}: every dimension must be "
            f"at least 1; choose one with input_shapes={{{name!r}: (...)}}",
            name=name,
            expected="positive dimensions",
            got=_text_of(given),
        )
    made: list[int | str | Dim] = []
    for axis, (length, its) in enumerate(zip(given, known, strict=True)):
        if length is None or length == "?":
            length = its if isinstance(its, str) and its != "?" else f"{name}_{axis}"
        made.append(length)
    return made


def _text_of(shape: Sequence[GivenLength]) -> str:
    return shape_text([-1 if d is None else d.text if isinstance(d, Dim) else d for d in shape])


def _write(value: onnx.ValueInfoProto, shape: Sequence[int | str | Dim]) -> None:
    written = value.type.tensor_type.shape
    written.ClearField("dim")
    written.SetInParent()
    for length in shape:
        if isinstance(length, int):
            written.dim.add().dim_value = length
        else:
            written.dim.add().dim_param = length.name if isinstance(length, Dim) else length


def _inputs(proto: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    initializers = {tensor.name for tensor in proto.graph.initializer}
    return {v.name: v for v in proto.graph.input if v.name not in initializers}


def _dims(value: onnx.ValueInfoProto) -> list[int | str]:
    """Return the dimensions of an input: numbers, or names of those that are open."""
    return [
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else (d.dim_param or "?")
        for d in value.type.tensor_type.shape.dim
    ]


def _unknown(option: str, name: str, inputs: Mapping[str, onnx.ValueInfoProto]) -> InputError:
    dims = {d for value in inputs.values() for d in _dims(value) if isinstance(d, str)}
    hint = near_matches(name, inputs)
    if name in dims:
        owner, its = next((n, _dims(v)) for n, v in inputs.items() if name in _dims(v))
        hint = f"it is a dimension of {owner!r}: give {option}={{{owner!r}: {shape_text(its)}}}"
    return InputError(f"{option} names {name!r}, which is no input of the model; {hint}", name=name)
