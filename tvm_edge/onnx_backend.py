"""ONNX's backend interface over :func:`tvm_edge.compile`.

For programs that speak to any ONNX runtime through ``onnx.backend.base``:

>>> import tvm_edge.onnx_backend as backend
>>> prepared = backend.prepare(model, "CPU")              # doctest: +SKIP
>>> outputs = prepared.run([image])                       # doctest: +SKIP
>>> outputs["logits"]                                     # doctest: +SKIP

See https://onnx.ai/onnx/repo-docs/ImplementingAnOnnxBackend.html.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np

from tvm_edge.errors import (
    DeviceUnavailableError,
    InputError,
    InvalidModelError,
    TvmEdgeError,
    near_matches,
)
from tvm_edge.extras import require, require_compiler

for _package in ("onnx", "onnx_ir", "onnxscript"):
    require(_package, "onnx", "for the ONNX backend")
require_compiler()

import onnx  # noqa: E402
from onnx.backend.base import Backend, BackendRep, namedtupledict  # noqa: E402

from tvm_edge.compiler import compile  # noqa: E402
from tvm_edge.frontend import load_model, read_model  # noqa: E402
from tvm_edge.frontend.onnx_import import refuse_unsupported  # noqa: E402
from tvm_edge.frontend.onnx_source import checked_proto  # noqa: E402
from tvm_edge.hardware.gpu import gpu_config, this_gpu  # noqa: E402
from tvm_edge.hardware.probe import GPU_APIS, probe_gpu  # noqa: E402
from tvm_edge.runtime import CompiledModel  # noqa: E402

__all__ = [
    "TvmEdgeBackend",
    "TvmEdgeRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]

# onnx.backend.base.DeviceType knows the first two.
_TARGETS = {"CPU": "llvm", "CUDA": "cuda", "OPENCL": "opencl"}

# Operands that decide shapes or the form of a kernel: code is generated for their values.
_FORMING = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "Dropout": (1, 2),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1, 2),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    **{
        f"Reduce{kind}": (1,)
        for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
    },
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}

# Compiled variants that a model keeps.
_MOST_VARIANTS = 16

# Parameters of compile() that the interface decides.
_OWN = ("model", "target", "input_shapes")


class TvmEdgeRep(BackendRep):
    """A model ready to run; made by :func:`prepare`.

    A model is compiled at once where all is known: its inputs have static shapes, and none of them
    is itself a shape, or what else forms a kernel (the axes of a reduction, the pads of a Pad). Any
    other is compiled when :meth:`run` meets a new combination of shapes and such values; the last
    16 are kept. :meth:`run` may be called from several threads.
    """

    def __init__(self, proto: onnx.ModelProto, device: str, options: Mapping[str, Any]) -> None:
        self._proto = proto
        self._api, self._index = _parsed(device)
        self._options = dict(options)
        self._lock = threading.Lock()
        self._compiled: dict[Any, CompiledModel] = {}
        self._inputs = {value.name: _dimensions(value) for value in proto.graph.input}
        self._required = _required(proto)
        self._forming = _forming(proto)
        self._outputs = namedtupledict("Outputs", [value.name for value in proto.graph.output])
        if _is_static(proto):
            self._model({}, {}, ())

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
        shapes = {name: self._shape(name, value) for name, value in values.items()}
        constants = {name: values.pop(name) for name in self._forming if name in values}
        model = self._model(
            {name: shapes[name] for name in values if not _known(self._inputs[name])},
            {name: self._constant(name, value) for name, value in constants.items()},
            tuple(name for name in values if name not in self._required),
        )
        results = model.run(values)
        return self._outputs(*(results[spec.name] for spec in model.outputs))

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


class TvmEdgeBackend(Backend):
    """ONNX's backend interface; the functions of this module are its methods.

    Devices are ``"CPU"``, ``"CUDA"`` and ``"OPENCL"``; ``"CUDA:1"`` is the second of its kind.
    """

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether :meth:`prepare` takes the model, as far as can be told without compiling it.

        Parameters
        ----------
        model, device, **kwargs
            As for :meth:`prepare`.
        """
        try:
            proto = cls._checked(model, device, kwargs)
            if _is_static(proto):
                load_model(proto)
        except TvmEdgeError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> TvmEdgeRep:
        """Compile a model.

        Parameters
        ----------
        model : onnx.ModelProto, path, bytes or ``"zoo:NAME"``
            Shapes of inputs may be dynamic: then code is generated at the first run.
        device : str
            ``"CPU"``, ``"CUDA"``, ``"OPENCL"``, or with a number, ``"CUDA:1"``.
        **kwargs
            Options of :func:`tvm_edge.compile`, ``input_shapes`` excepted: those come with
            :meth:`TvmEdgeRep.run`.

        Raises
        ------
        DeviceUnavailableError
            There is no such device here.
        InvalidModelError, UnsupportedOperatorError, InputError
        """
        return TvmEdgeRep(cls._checked(model, device, kwargs), device, kwargs)

    @classmethod
    def _checked(cls, model: Any, device: str, options: Mapping[str, Any]) -> onnx.ModelProto:
        """The parsed model; refuses it, the device or the options where they do not do."""
        if not cls.supports_device(device):
            raise DeviceUnavailableError(
                f"there is no device {device!r} on this machine; use one of {', '.join(_TARGETS)}, "
                "or to see what is missing, run: tvm-edge doctor"
            )
        known = [name for name in signature(compile).parameters if name not in _OWN]
        for name in options:
            if name not in known:
                raise InputError(
                    f"{name!r} is not an option of prepare(); {near_matches(name, known)}",
                    name=name,
                    expected=", ".join(known),
                    got=name,
                )
        proto = read_model(model)
        refuse_unsupported(checked_proto(proto))
        return proto

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile a model and run it once: :meth:`prepare`, then :meth:`TvmEdgeRep.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Compile a single operator and run it once.

        Parameters
        ----------
        node : onnx.NodeProto
        inputs : sequence or mapping of arrays
            One array for each input that has a name, in order.
        device : str
            As for :meth:`prepare`.
        outputs_info : sequence of (dtype, shape), optional
            Types and shapes of the outputs, where ONNX cannot infer them.
        opset_version : int, optional
            Default: the newest that the installed onnx knows.
        **kwargs
            Options of :func:`tvm_edge.compile`.

        Returns
        -------
        namedtuple of np.ndarray
            Of the outputs that have a name.

        Raises
        ------
        InvalidModelError, UnsupportedOperatorError, InputError, DeviceUnavailableError
        """
        opset = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        model = _model_of(node, inputs, outputs_info, opset)
        return cls.run_model(model, inputs, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether this machine has the device: ``"CPU"``, ``"CUDA"``, ``"OPENCL:1"``, …"""
        api, index = _parsed(device)
        if api in GPU_APIS:
            return probe_gpu(api, index) is not None
        return (api, index) == ("llvm", 0)


def _parsed(device: str) -> tuple[str, int]:
    """The kind of target and the number in a device's name; ``("", 0)`` if it is none."""
    name, colon, number = str(device).partition(":")
    if name not in _TARGETS or (colon and not number.isdecimal()):
        return "", 0
    return _TARGETS[name], int(number or 0)


def _target(api: str, index: int) -> str | dict[str, Any]:
    """What to compile for; the first device of a kind goes by its name."""
    if not index:
        return api
    return gpu_config(api, *this_gpu(api, index))


def _dimensions(value: onnx.ValueInfoProto) -> tuple[int | str, ...] | None:
    """Lengths of an input, a name or ``?`` where any will do; ``None`` for any shape."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?"
        for dim in value.type.tensor_type.shape.dim
    )


def _known(dimensions: tuple[int | str, ...] | None) -> bool:
    return dimensions is not None and all(isinstance(length, int) for length in dimensions)


def _required(proto: onnx.ModelProto) -> list[str]:
    """Inputs that no initializer defaults."""
    defaults = {tensor.name for tensor in proto.graph.initializer}
    return [value.name for value in proto.graph.input if value.name not in defaults]


def _forming(proto: onnx.ModelProto) -> list[str]:
    """Inputs that decide shapes or the form of a kernel."""
    operands = {
        node.input[index]
        for node in proto.graph.node
        for index in _FORMING.get(node.op_type, ())
        if index < len(node.input) and not node.domain
    }
    return [value.name for value in proto.graph.input if value.name in operands]


def _is_static(proto: onnx.ModelProto) -> bool:
    """Whether the model can be compiled before its inputs are seen.

    An input that is no tensor is for the frontend to refuse.
    """
    required = set(_required(proto))
    return required.isdisjoint(_forming(proto)) and all(
        _known(_dimensions(value)) or not value.type.HasField("tensor_type")
        for value in proto.graph.input
        if value.name in required
    )


def _model_of(
    node: onnx.NodeProto,
    inputs: Any,
    outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None,
    opset: int,
) -> onnx.ModelProto:
    """A model of one operator, typed by `inputs`."""
    names = list(dict.fromkeys(name for name in node.input if name))
    outputs = [name for name in node.output if name]
    arrays = inputs
    if not isinstance(inputs, Mapping):
        arrays = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        if len(arrays) != len(names):
            raise InputError(
                f"run_node() got {len(arrays)} arrays, and the inputs of {node.op_type} are "
                f"{', '.join(map(repr, names)) or 'none'}; pass one array for each",
                name="inputs",
                expected=str(len(names)),
                got=str(len(arrays)),
            )
        arrays = dict(zip(names, arrays, strict=True))
    try:
        values = [_value(name, np.asarray(arrays[name])) for name in names if name in arrays]
        graph = onnx.helper.make_graph(
            [node],
            node.name or node.op_type,
            values,
            [
                onnx.helper.make_tensor_value_info(
                    name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(info[0])), info[1]
                )
                for name, info in zip(outputs, outputs_info, strict=True)
            ]
            if outputs_info is not None
            else [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
        if node.domain:
            model.opset_import.add(domain=node.domain, version=1)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    # onnx: a type that it does not have, an operator that it does not know.
    except (ValueError, TypeError, KeyError, onnx.shape_inference.InferenceError) as err:
        raise InvalidModelError(
            f"{node.op_type} does not fit its inputs: {' '.join(str(err).split())[:300]}; "
            "check the node, opset_version= and outputs_info="
        ) from err


def _value(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, dtype, array.shape)


is_compatible = TvmEdgeBackend.is_compatible
prepare = TvmEdgeBackend.prepare
run_model = TvmEdgeBackend.run_model
run_node = TvmEdgeBackend.run_node
supports_device = TvmEdgeBackend.supports_device
