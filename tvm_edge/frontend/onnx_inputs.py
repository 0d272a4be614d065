"""Inputs of an ONNX model: their shapes become numbers, and their values constants, as told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvm_edge.errors import InputError, UnsupportedOperatorError, near_matches

if TYPE_CHECKING:
    import onnx

__all__ = ["fix_values", "freeze_inputs"]


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


def freeze_inputs(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> None:
    """Write `shapes` into the graph's inputs; afterwards every input dimension is a number.

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
    _refuse_open(values, shapes)
    for name, value in values.items():
        _freeze(value, shapes.get(name))
    if shapes:
        # Shapes that the exporter wrote for the old input would contradict the new one.
        proto.graph.ClearField("value_info")
        for output in proto.graph.output:
            for dim in output.type.tensor_type.shape.dim:
                dim.Clear()


def _refuse_open(
    values: Mapping[str, onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int]]
) -> None:
    """Refuse dimensions that nobody fixes; name all of them at once."""
    unfixed = {name: _dims(value) for name, value in values.items() if name not in shapes}
    left = {n: dims for n, dims in unfixed.items() if any(isinstance(d, str) for d in dims)}
    if not left:
        return
    shown = ", ".join(f"{name!r}: {shape_text(dims)}" for name, dims in left.items())
    lengths = list(dict.fromkeys(d for dims in left.values() for d in dims if isinstance(d, str)))
    words = " ".join(f"{name}:{','.join(map(str, dims))}" for name, dims in left.items())
    first = next(iter(left))
    raise InputError(
        f"{'inputs have' if len(left) > 1 else f'the input {first!r} has'} dynamic dimensions; fix "
        f"them with input_shapes={{{shown}}} and a number for each of {', '.join(lengths)} "
        f"(command line: --input-shapes {words})",
        name=first,
        expected="a static shape",
        got=shape_text(left[first]),
    )


def _freeze(value: onnx.ValueInfoProto, shape: Sequence[int] | None) -> None:
    name, tensor_type = value.name, value.type.tensor_type
    dims = _dims(value)
    given: Sequence[int | str] = dims if shape is None else shape
    if tensor_type.HasField("shape") and len(given) != len(dims):
        raise InputError(
            f"input_shapes gives {name!r} {len(given)} dimensions {tuple(given)}, and the "
            f"model has {len(dims)}: {shape_text(dims)}; give one length per dimension",
            name=name,
            expected=shape_text(dims),
            got=str(tuple(given)),
        )
    # Exporters write 0 for a length that they do not know: who means it says it again.
    meant = [shape is not None and length == 0 for length in dims] or [False] * len(given)
    if any(
        not isinstance(length, int) or length < 0 or (length == 0 and not empty)
        for length, empty in zip(given, meant, strict=True)
    ):
        raise InputError(
            f"the input {name!r} has the shape {shape_text(given)}: every dimension must be "
            f"at least 1; choose one with input_shapes={{{name!r}: (...)}}",
            name=name,
            expected="positive dimensions",
            got=shape_text(given),
        )
    tensor_type.shape.ClearField("dim")
    tensor_type.shape.SetInParent()
    for length in given:  # numbers, by now
        tensor_type.shape.dim.add().dim_value = length


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


def shape_text(dims: Sequence[int | str]) -> str:
    return "(" + ", ".join(str(d) for d in dims) + ("," if len(dims) == 1 else "") + ")"
