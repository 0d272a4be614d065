"""A model with ONNX's backend interface, compiled when the inputs that form its code are known."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import BackendRep, namedtupledict

from tvm_edge.compiler.driver import compile
from tvm_edge.errors import InputError, near_matches
from tvm_edge.frontend.onnx_forming_inputs import forming_inputs
from tvm_edge.hardware.gpu import this_gpu
from tvm_edge.hardware.kinds import GPU_KINDS
from tvm_edge.onnx_backend.sequences import (
    WrittenOut,
    checked_inputs,
    has_sequences,
    signature,
)
from tvm_edge.runtime import CompiledModel

__all__ = ["TARGETS", "TvmEdgeRep", "is_static", "parse_device"]

# onnx.backend.base.DeviceType knows the first two.
TARGETS = {"CPU": "llvm", "CUDA": "cuda", "OPENCL": "opencl"}

# Compiled variants that a model keeps.
_MOST_VARIANTS = 16


class TvmEdgeRep(BackendRep):
    """A model ready to run; made by :func:`prepare`.

    A model is compiled at once where all is known: its inputs have static shapes, and none of them
    is itself a shape, or what else forms a kernel (the axes of a reduction, the pads of a Pad). Any
    other is compiled when :meth:`run` meets a new combination of shapes and such values; the last
    16 are kept. :meth:`run` may be called from several threads.

    Inputs and outputs that are sequences are lists of arrays, and an optional without a value is
    ``None``. A model that has them is compiled for the lengths that :meth:`run` meets.
    """

    def __init__(self, proto: onnx.ModelProto, device: str, options: Mapping[str, Any]) -> None:
        self._proto = proto
        self._device = device
        self._api, self._index = parse_device(device)
        self._options = dict(options)
        self._lock = threading.Lock()
        self._compiled: dict[Any, CompiledModel] = {}
        self._has_sequences = has_sequences(proto)
        self._written: dict[Any, tuple[WrittenOut, TvmEdgeRep]] = {}
        self._inputs = {value.name: _dimensions(value) for value in proto.graph.input}
        self._required = _required(proto)
        self._forming = forming_inputs(proto)
        self._outputs = namedtupledict("Outputs", [value.name for value in proto.graph.output])
        if is_static(proto):
            self._model({}, {}, ())

    @property
    def kind(self) -> str:
        """Kind of compilation: ``"static"``, ``"specialised"`` or ``"dynamic"``.

        ``"static"`` is once and for all, ``"specialised"`` for the values of inputs that are
        shapes or form kernels otherwise, and for lengths of sequences, ``"dynamic"`` for the shapes
        of its inputs alone.
        """
        if self._has_sequences:
            return "specialised"
        if is_static(self._proto):
            return "static"
        return "specialised" if self._forming else "dynamic"

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model once.

        Parameters
        ----------
        inputs : sequence or mapping of arrays
            A sequence has the model's inputs in order, those that an initializer defaults left
            out, or all of them. A mapping is from name to array. One array alone is the only
            input.
        **kwargs
            None are known.

        Returns
        -------
        namedtuple of np.ndarray
            In the model's order; by index, attribute or ``outputs["name"]``.

        Raises
        ------
        InputError
            A wrong number of inputs, name, shape or type.
        InvalidModelError, UnsupportedOperatorError
            A model with dynamic shapes does not work for these.
        """
        if kwargs:
            raise InputError(
                f"run() takes no option {sorted(kwargs)[0]!r}; pass options to prepare()",
                name=sorted(kwargs)[0],
            )
        values = self._by_name(inputs)
        if self._has_sequences:
            return self._outputs(*self._run_written_out(values))
        shapes = {name: self._shape(name, value) for name, value in values.items()}
        constants = {name: values.pop(name) for name in self._forming if name in values}
        model = self._model(
            {name: shapes[name] for name in values if not _known(self._inputs[name])},
            {name: self._constant(name, value) for name, value in constants.items()},
            tuple(name for name in values if name not in self._required),
        )
        results = model.run(values)
        return self._outputs(*(results[spec.name] for spec in model.outputs))

    def _run_written_out(self, values: dict[str, Any]) -> list[Any]:
        """Run the model of tensors that sequences of these lengths make of this one."""
        values = checked_inputs(self._proto, values)
        key = signature(values)
        with self._lock:
            made = self._written.pop(key, None)
            if made is None:
                written = WrittenOut(self._proto, values)
                made = written, type(self)(written.proto, self._device, self._options)
            self._written[key] = made
            while len(self._written) > _MOST_VARIANTS:
                del self._written[next(iter(self._written))]
        written, prepared = made
        return written.results(prepared.run(written.inputs(values)))

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        """The caller's arrays in the model's order."""
        if not isinstance(inputs, Mapping):
            arrays = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            names = list(self._inputs)
            if len(arrays) != len(names):
                names = self._required
            if len(arrays) != len(names):
                raise InputError(
                    f"run() got {len(arrays)} arrays, and the model's inputs are "
                    f"{', '.join(map(repr, names)) or 'none'}; pass one array for each",
                    name="inputs",
                    expected=str(len(names)),
                    got=str(len(arrays)),
                )
            inputs = dict(zip(names, arrays, strict=True))
        for name in inputs:
            if name not in self._inputs:
                raise InputError(
                    f"the model has no input {name!r}; {near_matches(str(name), self._inputs)}",
                    name=str(name),
                    expected=", ".join(self._inputs),
                    got=str(name),
                )
        for name in self._required:
            if name not in inputs:
                raise InputError(
                    f"the input {name!r} is missing; add {name!r} to the inputs",
                    name=name,
                    expected="an array",
                    got="nothing",
                )
        # A NumPy scalar is a tensor without dimensions.
        return {
            name: np.asarray(inputs[name]) if isinstance(inputs[name], np.generic) else inputs[name]
            for name in self._inputs
            if name in inputs
        }

    def _shape(self, name: str, value: Any) -> tuple[int, ...]:
        """The shape of an input, which must be one that the model allows."""
        if not hasattr(value, "shape"):
            raise InputError(
                f"the input {name!r} is a {type(value).__name__}; pass a NumPy array or anything "
                "with __dlpack__ (a PyTorch tensor, a TVM tensor)",
                name=name,
                expected="an array",
                got=type(value).__name__,
            )
        shape = tuple(int(length) for length in value.shape)
        allowed = self._inputs[name]
        if allowed is not None and (
            len(shape) != len(allowed)
            or any(isinstance(a, int) and a != b for a, b in zip(allowed, shape, strict=True))
        ):
            text = f"({', '.join(map(str, allowed))})"
            raise InputError(
                f"the input {name!r} has the shape {shape}, and the model takes {text}; "
                "resize the data",
                name=name,
                expected=text,
                got=str(shape),
            )
        return shape

    def _constant(self, name: str, value: Any) -> np.ndarray:
        """The value of an input that forms a kernel."""
        declared = next(v for v in self._proto.graph.input if v.name == name)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(declared.type.tensor_type.elem_type)
        array = value if isinstance(value, np.ndarray) else np.from_dlpack(value)
        if array.dtype != dtype:
            raise InputError(
                f"the input {name!r} has the type {array.dtype}, and the model takes {dtype.name}; "
                f"convert it with .astype({dtype.name!r})",
                name=name,
                expected=dtype.name,
                got=str(array.dtype),
            )
        return array

    def _model(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        constants: Mapping[str, np.ndarray],
        given: tuple[str, ...],
    ) -> CompiledModel:
        """The model for these inputs.

        Parameters
        ----------
        shapes
            Of inputs that the model leaves dynamic.
        constants
            Inputs that form a kernel.
        given
            Names of the inputs handed in although they have a default.
        """
        values = ((name, value.shape, value.tobytes()) for name, value in constants.items())
        key = (tuple(shapes.items()), tuple(values), given)
        with self._lock:
            model = self._compiled.pop(key, None) or self._compile(shapes, constants, given)
            self._compiled[key] = model
            while len(self._compiled) > _MOST_VARIANTS:
                del self._compiled[next(iter(self._compiled))]
        return model

    def _compile(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        constants: Mapping[str, np.ndarray],
        given: tuple[str, ...],
    ) -> CompiledModel:
        proto = onnx.ModelProto()
        proto.CopyFrom(self._proto)
        replaced = {*constants, *given}
        # An initializer that is an input too is a default, and no constant where nothing uses it.
        kept = [value for value in proto.graph.input if value.name not in constants]
        proto.graph.ClearField("input")
        proto.graph.input.extend(kept)
        proto.ir_version = max(proto.ir_version, 4)  # before, every initializer was an input
        weights = [t for t in proto.graph.initializer if t.name not in replaced]
        weights += [onnx.numpy_helper.from_array(v, name) for name, v in constants.items()]
        proto.graph.ClearField("initializer")
        proto.graph.initializer.extend(weights)
        target = _target(self._api, self._index)
        model = compile(proto, target, input_shapes=shapes, **self._options)
        return model.on_device(f"{self._api}:{self._index}") if self._index else model


def parse_device(device: str) -> tuple[str, int]:
    """The kind of target and the number in a device's name; ``("", 0)`` if it is none."""
    name, colon, number = str(device).partition(":")
    if name not in TARGETS or (colon and not number.isdecimal()):
        return "", 0
    return TARGETS[name], int(number or 0)


def _target(api: str, index: int) -> str | dict[str, Any]:
    """Return the target to compile for; the first device of a kind goes by its name."""
    if not index:
        return api
    kind = GPU_KINDS[api]
    return kind.config(*this_gpu(kind, index))


def _dimensions(value: onnx.ValueInfoProto) -> tuple[int | str, ...] | None:
    """Lengths of an input, a name or ``?`` where any will do; ``None`` for any shape."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?"
        for dim in value.type.tensor_type.shape.dim
    )


def _known(dimensions: tuple[int | str, ...] | None) -> bool:
    # A length of 0 is what it says where there are data without elements, and unknown elsewhere.
    return dimensions is not None and all(
        isinstance(length, int) and length > 0 for length in dimensions
    )


def _required(proto: onnx.ModelProto) -> list[str]:
    """Inputs that no initializer defaults."""
    defaults = {tensor.name for tensor in proto.graph.initializer}
    return [value.name for value in proto.graph.input if value.name not in defaults]


def is_static(proto: onnx.ModelProto) -> bool:
    """Return whether the model can be compiled before its inputs are seen.

    An input that is no tensor, sequence or optional is for the frontend to refuse.
    """
    if has_sequences(proto):
        return False
    required = set(_required(proto))
    return required.isdisjoint(forming_inputs(proto)) and all(
        _known(_dimensions(value)) or not value.type.HasField("tensor_type")
        for value in proto.graph.input
        if value.name in required
    )
