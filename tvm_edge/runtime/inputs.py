"""Inputs of a run: from values that a caller hands in to arrays that a session takes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tvm

from tvm_edge.errors import InputError, near_matches
from tvm_edge.report import TensorSpec
from tvm_edge.report.tensors import offsets_problem, shape_text
from tvm_edge.runtime.dlpack import (
    contiguous,
    device_kind,
    host_array,
    import_tensor,
    is_host_memory,
    numpy_dtype,
)

__all__ = ["Bound", "bind_inputs", "random_inputs", "stored"]

Bound: TypeAlias = np.ndarray | tvm.runtime.Tensor
"""An input whose name, shape and type are right."""


def bind_inputs(
    specs: Sequence[TensorSpec],
    values: Mapping[str, Any],
    devices: Sequence[tvm.runtime.Device],
) -> list[Bound]:
    """Check `values` against the signature and return arrays in its order.

    Parameters
    ----------
    specs : sequence of TensorSpec
    values : mapping of str to array
        NumPy arrays, or anything with ``__dlpack__``.
    devices : sequence of tvm.runtime.Device
        Where the model wants each input.

    Returns
    -------
    list of np.ndarray or tvm.runtime.Tensor
        Data on the kind of device that the model wants it on, as tensors over the caller's
        memory; everything else as arrays, contiguous and in this machine's byte order, which are
        the caller's own memory where it is so already.

    Raises
    ------
    InputError
        A name, shape or type that does not fit; it carries name, expected and got.
    """
    if not isinstance(values, Mapping):
        names = ", ".join(repr(spec.name) for spec in specs)
        raise InputError(
            f"inputs must be a dict from name to array, not a {type(values).__name__}; "
            f"this model's inputs are {names}",
            name="inputs",
            expected="dict",
            got=type(values).__name__,
        )
    if len(values) != len(specs) or any(spec.name not in values for spec in specs):
        _refuse_names(specs, values)
    lengths: dict[str, int] = {}
    bound = [
        _bind(spec, values[spec.name], device, lengths)
        for spec, device in zip(specs, devices, strict=True)
    ]
    for spec, value in zip(specs, bound, strict=True):
        if spec.offsets_into is not None:
            _check_offsets(spec, value)
    return bound


def _refuse_names(specs: Sequence[TensorSpec], values: Mapping[str, Any]) -> None:
    known = {spec.name for spec in specs}
    for name in values:
        if name not in known:
            raise InputError(
                f"the model has no input {name!r}; {near_matches(str(name), known)}",
                name=str(name),
                expected=", ".join(sorted(known)),
                got=str(name),
            )
    for spec in specs:
        if spec.name not in values:
            raise InputError(
                f"the input {spec} is missing; add {spec.name!r} to the dict",
                name=spec.name,
                expected=str(spec),
                got="nothing",
            )


def _check_offsets(spec: TensorSpec, value: Bound) -> None:
    offsets = value if isinstance(value, np.ndarray) else value.numpy()
    problem = offsets_problem(offsets, spec.offsets_into or 0)
    if problem:
        raise InputError(
            f"the input {spec.name!r} says where segments begin, and {problem}; "
            "pass their ascending offsets, one more than there are segments",
            name=spec.name,
            expected=f"ascending offsets from 0 to {spec.offsets_into}",
            got=problem,
        )


def _is_masked(value: Any) -> bool:
    """Return whether it is a masked array, without the 17 ms that importing their module takes."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(value, masked.MaskedArray)


def _bind(
    spec: TensorSpec, value: Any, device: tvm.runtime.Device, lengths: dict[str, int]
) -> Bound:
    """Check one input; `lengths` are those that inputs before it have in open dimensions."""
    if _is_masked(value):
        raise InputError(
            f"the input {spec.name!r} is a masked array, and the model would read what is under "
            "the mask; pass its values (.filled(…) in NumPy)",
            name=spec.name,
            expected="an array without a mask",
            got="a masked array",
        )
    if isinstance(value, np.ndarray):
        # What fits at once is most of all; the names of NumPy's types cost 15 µs.
        if value.dtype == numpy_dtype(spec.dtype) and value.shape == spec.shape:
            return value if value.flags.c_contiguous else _in_order(spec, value, value.dtype)
        native = value.dtype.newbyteorder("=")
        _check(spec, str(native), value.shape, lengths, str(value.dtype))
        if not value.size:  # whose strides may be anything
            return np.zeros(value.shape, native)
        return _in_order(spec, value, native).reshape(value.shape)
    if not hasattr(value, "__dlpack__"):
        raise InputError(
            f"the input {spec.name!r} is a {type(value).__name__}; pass a NumPy array or "
            "anything with __dlpack__ (a PyTorch tensor, a TVM tensor)",
            name=spec.name,
            expected="an array",
            got=type(value).__name__,
        )
    try:
        kind = device_kind(value)
        if is_host_memory(kind):
            return _from_host(spec, value, lengths)
        if kind == int(device.dlpack_device_type()):
            return _on_device(spec, value, lengths)
    except InputError:
        raise
    except Exception as err:  # another library's: DLPack's BufferError is only what it should be
        raise _unreadable(spec, value, err, "pass its values as a NumPy array") from err
    return _from_elsewhere(spec, value, lengths)


def _in_order(spec: TensorSpec, value: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return an array with its elements in order; a broadcast one may be larger than memory."""
    try:
        return np.ascontiguousarray(value, dtype=dtype)
    except (MemoryError, ValueError) as err:  # ValueError: "iterator is too large"
        raise InputError(
            f"the input {spec.name!r} of the shape {value.shape} needs more memory than there is "
            f"({err}); give it smaller dimensions",
            name=spec.name,
            expected=shape_text(spec.shape),
            got=str(value.shape),
        ) from err


def _from_host(spec: TensorSpec, value: Any, lengths: dict[str, int]) -> np.ndarray:
    tensor = import_tensor(value)
    _check(spec, str(tensor.dtype), tensor.shape, lengths)
    dtype = numpy_dtype(spec.dtype)
    if not tensor.is_contiguous() and dtype.kind not in "biufc":
        tensor = import_tensor(contiguous(value))
    return np.ascontiguousarray(host_array(tensor)).reshape(tensor.shape)


def _on_device(spec: TensorSpec, value: Any, lengths: dict[str, int]) -> tvm.runtime.Tensor:
    tensor = import_tensor(value)
    _check(spec, str(tensor.dtype), tensor.shape, lengths)
    return tensor if tensor.is_contiguous() else import_tensor(contiguous(value))


def _from_elsewhere(spec: TensorSpec, value: Any, lengths: dict[str, int]) -> np.ndarray:
    """From a device that is not the model's, by way of the host."""
    try:
        tensor = import_tensor(value, to_host=True)
        if not is_host_memory(device_kind(tensor)):
            raise BufferError("it stays where it is")
    except Exception:  # a producer that only lends its memory; TVM may be able to read it
        try:
            tensor = _on_device(spec, value, lengths).copyto(tvm.cpu())
        except InputError:
            raise
        except Exception as err:
            raise _unreadable(
                spec,
                value,
                err,
                "bring it to host memory first (.cpu() in PyTorch, .get() in CuPy)",
            ) from err
    _check(spec, str(tensor.dtype), tensor.shape, lengths)
    return np.ascontiguousarray(host_array(tensor)).reshape(tensor.shape)


def _unreadable(spec: TensorSpec, value: Any, err: Exception, advice: str) -> InputError:
    reason = str(err).strip().splitlines()[-1] if str(err).strip() else type(err).__name__
    return InputError(
        f"the input {spec.name!r}, a {type(value).__name__}, cannot be read through DLPack: "
        f"{reason}; {advice}",
        name=spec.name,
        expected="an array in host memory or on the model's device",
        got=type(value).__name__,
    )


def _check(
    spec: TensorSpec,
    dtype: str,
    shape: tuple[int, ...],
    lengths: dict[str, int],
    shown_dtype: str | None = None,
) -> None:
    if dtype != spec.dtype:
        raise InputError(
            f"the input {spec.name!r} has the type {shown_dtype or dtype}, and the model takes "
            f"{spec.dtype}; convert it (.astype({spec.dtype!r}) in NumPy)",
            name=spec.name,
            expected=spec.dtype,
            got=shown_dtype or dtype,
        )
    problem = "" if shape == spec.shape else _shape_problem(spec, shape, lengths)
    if problem:
        advice = f"input_shapes={{{spec.name!r}: {shape}}}"
        raise InputError(
            f"the input {spec.name!r} has the shape {shape}, and {problem}; resize the data, or "
            f"compile with {advice}",
            name=spec.name,
            expected=str(spec.shape),
            got=str(shape),
        )


def _shape_problem(spec: TensorSpec, shape: tuple[int, ...], lengths: dict[str, int]) -> str:
    """Say what is wrong with a shape; add its open dimensions to the `lengths` that are known."""
    if len(shape) != len(spec.shape) or any(
        isinstance(its, int) and length != its
        for length, its in zip(shape, spec.shape, strict=True)
    ):
        return f"the model takes {shape_text(spec.shape)}"
    dims = {dim.name: dim for dim in spec.dims}
    for length, its in zip(shape, spec.shape, strict=True):
        if not isinstance(its, str):
            continue
        known = lengths.setdefault(its, length)
        if known != length:
            return f"{its!r} is {length} here and {known} elsewhere; one name is one length"
        refusal = dims[its].refusal(length)
        if refusal:
            return f"{its!r} takes {dims[its].range_text}"
    return ""


def random_inputs(specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """Seeded inputs for benchmarks: normal floats, zeros and ones of other types, even segments."""
    generator = np.random.default_rng(0)
    values = {}
    for spec in specs:
        dtype = numpy_dtype(spec.dtype)
        if spec.offsets_into is not None:
            drawn: np.ndarray = np.linspace(0, spec.offsets_into, spec.typical_shape[0])
        elif "float" in spec.dtype:
            drawn = generator.standard_normal(spec.typical_shape)
        else:
            drawn = generator.integers(0, 2, spec.typical_shape)
        values[spec.name] = drawn.astype(dtype)
    return values


def stored(value: Bound, spec: TensorSpec) -> Bound:
    """Return the bytes of an input as the type that the code of the model has it in."""
    if spec.stored_as is None:
        return value
    if isinstance(value, np.ndarray):
        return value.view(numpy_dtype(spec.stored_as))
    return value._create_view(value.shape, spec.stored_as)
