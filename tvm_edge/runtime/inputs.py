"""Inputs of a run: from values that a caller hands in to tensors that the native runtime takes.

What they have to be is checked in C++ (``native/csrc/binding.cc``).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tvm

from tvm_edge.errors import InputError
from tvm_edge.report import TensorSpec
from tvm_edge.report.tensors import shape_text
from tvm_edge.runtime.dlpack import (
    contiguous,
    device_kind,
    host_array,
    import_tensor,
    is_host_memory,
    numpy_dtype,
    share_array,
)

__all__ = ["Bound", "Check", "as_tensors", "bind_inputs", "random_inputs", "unaligned_zeros"]

Bound: TypeAlias = np.ndarray | tvm.runtime.Tensor
"""An input whose elements are in order; an array is of NumPy's own types, in native byte order."""

Check: TypeAlias = Callable[[int, str, Sequence[int]], None]
"""Refuse the type, by its name, or the shape of an input by its position."""

_PLAIN = frozenset(np.dtype(code) for code in "?bhilBHILefd")
"""Types of arrays that TVM FFI takes as they are."""


def bind_inputs(
    specs: Sequence[TensorSpec],
    values: Mapping[str, Any],
    devices: Sequence[tvm.runtime.Device],
    refuse_names: Callable[[Sequence[str]], None],
    check: Check,
) -> list[Bound]:
    """Return `values` as arrays and tensors, in the signature's order.

    Parameters
    ----------
    specs : sequence of TensorSpec
    values : mapping of str to array
        NumPy arrays, or anything with ``__dlpack__``.
    devices : sequence of tvm.runtime.Device
        Where the model wants each input.
    refuse_names : callable
        Raises for names that are not the inputs'.
    check : callable
        Raises for types and shapes that are not an input's, by its position among `specs`; asked
        before anything is copied.

    Returns
    -------
    list of np.ndarray or tvm.runtime.Tensor
        Data on the kind of device that the model wants it on, as tensors over the caller's
        memory; everything else as arrays, contiguous and in this machine's byte order, which are
        the caller's own memory where it is so already.

    Raises
    ------
    InputError
        It carries name, expected and got.
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
    if len(values) != len(specs):
        refuse_names([str(name) for name in values])
    bound: list[Bound] = []
    for position, spec in enumerate(specs):
        try:
            value = values[spec.name]
        except KeyError:
            refuse_names([str(name) for name in values])
            raise
        if type(value) is np.ndarray and value.dtype in _PLAIN and value.flags.carray:
            bound.append(value)  # most of all
        else:
            bound.append(_Input(spec, position, devices[position], check).bind(value))
    return bound


def as_tensors(bound: Sequence[Bound]) -> list[tvm.runtime.Tensor]:
    """Return inputs as tensors over the same memory."""
    return [share_array(value) if isinstance(value, np.ndarray) else value for value in bound]


class _Input:
    """One input, of which something that is no plain array is given."""

    def __init__(
        self, spec: TensorSpec, position: int, device: tvm.runtime.Device, check: Check
    ) -> None:
        self._spec, self._position = spec, position
        self._device, self._check_with = device, check

    def bind(self, value: Any) -> Bound:
        spec = self._spec
        if _is_masked(value):
            raise InputError(
                f"the input {spec.name!r} is a masked array, and the model would read what is "
                "under the mask; pass its values (.filled(…) in NumPy)",
                name=spec.name,
                expected="an array without a mask",
                got="a masked array",
            )
        if isinstance(value, np.ndarray):
            return self._array(value)
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
                return self._from_host(value)
            if kind == int(self._device.dlpack_device_type()):
                return self._on_device(value)
        except InputError:
            raise
        except Exception as err:  # another library's: DLPack's BufferError is what it should be
            raise _unreadable(spec, value, err, "pass its values as a NumPy array") from err
        return self._from_elsewhere(value)

    def _array(self, value: np.ndarray) -> Bound:
        native = value.dtype.newbyteorder("=")
        self._check(str(native), value.shape)
        if not value.size:  # whose strides may be anything
            return _plain(np.zeros(value.shape, native))
        return _plain(_in_order(self._spec, value, native).reshape(value.shape))

    def _check(self, dtype: str, shape: Sequence[int]) -> None:
        self._check_with(self._position, dtype, shape)

    def _from_host(self, value: Any) -> Bound:
        tensor = import_tensor(value)
        self._check(str(tensor.dtype), tensor.shape)
        dtype = numpy_dtype(self._spec.dtype)
        if not tensor.is_contiguous() and dtype.isbuiltin != 1:
            tensor = import_tensor(contiguous(value))
        return _plain(np.ascontiguousarray(host_array(tensor)).reshape(tensor.shape))

    def _on_device(self, value: Any) -> tvm.runtime.Tensor:
        tensor = import_tensor(value)
        self._check(str(tensor.dtype), tensor.shape)
        return tensor if tensor.is_contiguous() else import_tensor(contiguous(value))

    def _from_elsewhere(self, value: Any) -> Bound:
        """From a device that is not the model's, by way of the host."""
        spec = self._spec
        try:
            tensor = import_tensor(value, to_host=True)
            if not is_host_memory(device_kind(tensor)):
                raise BufferError("it stays where it is")
        except Exception:  # a producer that only lends its memory; TVM may be able to read it
            try:
                tensor = self._on_device(value).copyto(tvm.cpu())
            except InputError:
                raise
            except Exception as err:
                raise _unreadable(
                    spec,
                    value,
                    err,
                    "bring it to host memory first (.cpu() in PyTorch, .get() in CuPy)",
                ) from err
        self._check(str(tensor.dtype), tensor.shape)
        return _plain(np.ascontiguousarray(host_array(tensor)).reshape(tensor.shape))


def _is_masked(value: Any) -> bool:
    """Return whether it is a masked array, without the 17 ms that importing their module takes."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(value, masked.MaskedArray)


def _plain(array: np.ndarray) -> Bound:
    """Return an array that TVM FFI takes, else a tensor: over bfloat16, or what is read-only."""
    return array if array.dtype in _PLAIN and array.flags.carray else share_array(array)


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


def _unreadable(spec: TensorSpec, value: Any, err: Exception, advice: str) -> InputError:
    reason = str(err).strip().splitlines()[-1] if str(err).strip() else type(err).__name__
    return InputError(
        f"the input {spec.name!r}, a {type(value).__name__}, cannot be read through DLPack: "
        f"{reason}; {advice}",
        name=spec.name,
        expected="an array in host memory or on the model's device",
        got=type(value).__name__,
    )


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


def unaligned_zeros(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """Zeros that kernels of the CPU cannot read where they are, as most arrays of NumPy."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.zeros(nbytes + 16, "uint8")
    begin = 0 if raw.ctypes.data % 64 else 16
    return raw[begin : begin + nbytes].view(dtype).reshape(shape)
