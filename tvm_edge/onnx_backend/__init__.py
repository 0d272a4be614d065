"""ONNX's backend interface over :func:`tvm_edge.compile`.

For programs that speak to any ONNX runtime through ``onnx.backend.base``:

>>> import tvm_edge.onnx_backend as backend
>>> prepared = backend.prepare(model, "CPU")              # doctest: +SKIP
>>> outputs = prepared.run([image])                       # doctest: +SKIP
>>> outputs["logits"]                                     # doctest: +SKIP

See https://onnx.ai/onnx/repo-docs/ImplementingAnOnnxBackend.html.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from types import MappingProxyType
from typing import Any

from tvm_edge.errors import DeviceUnavailableError, InputError, TvmEdgeError, near_matches
from tvm_edge.extras import require, require_compiler

for _package in ("onnx", "onnx_ir", "onnxscript"):
    require(_package, "onnx", "for the ONNX backend")
require_compiler()

import onnx  # noqa: E402
from onnx.backend.base import Backend  # noqa: E402

from tvm_edge.compiler.driver import compile  # noqa: E402
from tvm_edge.frontend import load_model, read_model  # noqa: E402
from tvm_edge.frontend.onnx_functions import expand_functions, standard_version  # noqa: E402
from tvm_edge.frontend.onnx_import import refuse_unsupported  # noqa: E402
from tvm_edge.frontend.onnx_loop_forms import unify_loops  # noqa: E402
from tvm_edge.frontend.onnx_source import checked_proto  # noqa: E402
from tvm_edge.hardware.kinds import KINDS  # noqa: E402
from tvm_edge.onnx_backend.backend_rep import (  # noqa: E402
    TARGETS,
    TvmEdgeRep,
    is_static,
    parse_device,
)
from tvm_edge.onnx_backend.nodes import model_of  # noqa: E402
from tvm_edge.onnx_backend.sequences import has_sequences, refuse_other_elements  # noqa: E402

__all__ = [
    "TvmEdgeBackend",
    "TvmEdgeRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]

# Parameters of compile() that the interface decides.
_OWN = ("model", "target", "input_shapes")


class TvmEdgeBackend(Backend):
    """ONNX's backend interface; the functions of this module are its methods.

    Devices are ``"CPU"``, ``"CUDA"`` and ``"OPENCL"``; ``"CUDA:1"`` is the second of its kind.
    """

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether :meth:`prepare` accepts the model, as far as is known before compilation.

        Parameters
        ----------
        model, device, **kwargs
            As for :meth:`prepare`.
        """
        try:
            proto = cls.checked(model, device, kwargs)
            if is_static(proto):
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
        return TvmEdgeRep(cls.checked(model, device, kwargs), device, kwargs)

    @classmethod
    def checked(
        cls, model: Any, device: str, options: Mapping[str, Any] = MappingProxyType({})
    ) -> onnx.ModelProto:
        """The parsed model; refuses it, the device or the options where they do not do."""
        if not cls.supports_device(device):
            raise DeviceUnavailableError(
                f"there is no device {device!r} on this machine; use one of {', '.join(TARGETS)}, "
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
        proto, _ = checked_proto(proto)
        if has_sequences(proto):
            refuse_other_elements(proto)
        else:
            unify_loops(proto.graph, standard_version(proto))
            refuse_unsupported(proto)
        return expand_functions(proto)

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
            Results of the outputs that have a name.

        Raises
        ------
        InvalidModelError, UnsupportedOperatorError, InputError, DeviceUnavailableError
        """
        opset = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        model = model_of(node, inputs, outputs_info, opset)
        return cls.run_model(model, inputs, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether this machine has the device: ``"CPU"``, ``"CUDA"``, ``"OPENCL:1"``, …"""
        api, index = parse_device(device)
        return api in KINDS and KINDS[api].probe(index) is not None


is_compatible = TvmEdgeBackend.is_compatible
prepare = TvmEdgeBackend.prepare
run_model = TvmEdgeBackend.run_model
run_node = TvmEdgeBackend.run_node
supports_device = TvmEdgeBackend.supports_device
