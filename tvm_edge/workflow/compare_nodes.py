"""Compare a compiled model with a reference, tensor by tensor of the original graph.

Kernels compute several nodes each, so the deployed build has no tensor for most of them. Compared
are the results of its kernels, from a build that returns them and is otherwise the same
(:mod:`~tvm_edge.relay_passes.lower.hand_out_results`). Its outputs are compared with the deployed
build's bit by bit. The reference computes each kernel once more from that build's own tensors: what
differs then is made there, all else is inherited. Another build runs every node by itself on the
reference's tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_edge.errors import InputError, near_matches
from tvm_edge.frontend import GivenInputs, read_model
from tvm_edge.frontend.onnx_inputs import fix_shapes
from tvm_edge.frontend.onnx_pictures import prepare_pictures
from tvm_edge.hardware import resolve_target
from tvm_edge.host import machine
from tvm_edge.runtime.inputs import random_inputs
from tvm_edge.workflow.comparison import Comparison
from tvm_edge.workflow.node_errors import NodeErrors
from tvm_edge.workflow.node_groups import Graph
from tvm_edge.workflow.references import ONNX_RUNTIME, Build, tensors_of

if TYPE_CHECKING:
    import onnx

__all__ = ["compare"]

_TOLERANCES = {"float32": 1e-4, "tf32": 1e-2, "mixed": 2e-2, "float16": 2e-2, "bfloat16": 0.1}
_INT8_TOLERANCE = 0.1  # of a quantised model: steps of 8 bits that go the other way add up


def compare(
    model: Any,
    target: Any = "llvm",
    *,
    inputs: Mapping[str, Any] | None = None,
    reference: Any = ONNX_RUNTIME,
    reference_options: Mapping[str, Any] | None = None,
    tolerance: float | None = None,
    bisect_passes: bool = False,
    dump: Any = None,
    remote: Any = None,
    **options: Any,
) -> Comparison:
    """Compare a compiled model with a reference, node by node.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or ``"zoo:NAME"``
    target : str, dict or tvm.target.Target
    inputs : mapping of str to array_like, optional
        Default: seeded random values.
    reference : "onnxruntime", str, dict or Target
        ONNX Runtime, or a target that the same model is compiled for with `reference_options`
        (default float32). A model that ONNX Runtime refuses is compared with float32 ``llvm``,
        which the result's `notes` say.
    reference_options : mapping, optional
        As of :func:`tvm_edge.compile`, of a reference that is a target.
    tolerance : float, optional
        Largest difference relative to the largest value of a tensor. Default 1e-4, with
        ``precision="tf32"`` 1e-2, with ``"mixed"`` and ``"float16"`` 2e-2, with ``"bfloat16"`` and
        of quantised models 0.1.
    bisect_passes : bool
        Compile again without one pass at a time, where there is an error, and say without which it
        is gone.
    dump : path, optional
        A folder for the kernel that makes the error, as an ONNX file with its inputs.
    remote : tvm_edge.Remote, optional
        A board that runs what is compiled here, from :func:`tvm_edge.connect`. ONNX Runtime, and a
        reference that is a CPU of this machine's architecture, run here all the same.
    **options
        Those of :func:`tvm_edge.compile`.

    Returns
    -------
    Comparison

    Raises
    ------
    InputError
        `inputs` do not fit, or the model is no single ONNX model.
    MissingDependencyError
        ONNX Runtime is the reference and not installed.
    ArtifactError, DeviceUnavailableError
        The board cannot run what is compiled for `target`.
    DeviceLost, MeasureTimeout
        The board does not answer any more.
    """
    if isinstance(model, Mapping) or type(model).__name__ == "IRModule":
        raise InputError(
            f"compare takes one ONNX model, not a {type(model).__name__}; give a path, bytes, an "
            "onnx.ModelProto or 'zoo:NAME', and compare several models one by one",
            name="model",
        )
    proto = read_model(model)
    options = _with_pictures(proto, options)
    graph = Graph(proto)
    build = Build(target, options, remote=remote)
    deployed = build.compile(graph.proto)
    given = _checked_inputs(deployed, inputs)
    if reference != ONNX_RUNTIME:
        beside = {**_shared(options), **(reference_options or {})}
        reference = Build(reference, beside, remote=None if _runs_here(reference) else remote)
    found = tensors_of(graph, given, reference)
    work = NodeErrors(graph, build, deployed, given, found, _tolerance(tolerance, options, graph))
    comparison = work.run()
    if bisect_passes and not _fine(comparison):
        comparison = replace(comparison, passes=work.trials(comparison))
    if dump is not None:
        comparison = replace(comparison, dumped=work.dumped(comparison, Path(dump)))
    return replace(comparison, model=_name(model))


def _with_pictures(proto: onnx.ModelProto, options: dict[str, Any]) -> dict[str, Any]:
    """Write the preparation of pictures into the model, as the reference computes it too."""
    given = GivenInputs.of(options.get("input_shapes"), pictures=options.get("preprocess"))
    if not given.pictures:
        return options
    fix_shapes(proto, given.shapes)
    prepare_pictures(proto, given.pictures)
    others = {name: shape for name, shape in given.shapes.items() if name not in given.pictures}
    return {**options, "preprocess": None, "input_shapes": others}


def _runs_here(target: Any) -> bool:
    resolved = resolve_target(target)
    return resolved.kind == "llvm" and resolved.architecture == machine()


def _fine(comparison: Comparison) -> bool:
    return comparison.within and comparison.first is None and comparison.culprit is None


def _name(model: Any) -> str:
    if not isinstance(model, (str, Path)):
        return "model"
    return str(model) if str(model).startswith("zoo:") else Path(model).name


def _shared(options: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("input_shapes", "input_values", "num_threads", "cpus")
    return {name: options[name] for name in kept if name in options}


def _tolerance(tolerance: float | None, options: Mapping[str, Any], graph: Graph) -> float:
    if tolerance is None:
        if any(node.op_type == "QuantizeLinear" for node in graph.nodes):
            return _INT8_TOLERANCE
        return _TOLERANCES.get(options.get("precision", "float32"), 1e-4)
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not tolerance >= 0:
        raise InputError(
            f"tolerance={tolerance!r} is not a valid value; use a number like 1e-4",
            name="tolerance",
            got=repr(tolerance),
        )
    return float(tolerance)


def _checked_inputs(deployed: Any, inputs: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    if inputs is None:
        return random_inputs(deployed.inputs)
    known = [spec.name for spec in deployed.inputs]
    for name in inputs:
        if name not in known:
            raise InputError(
                f"the model has no input {name!r}; {near_matches(name, known)}", name=name
            )
    return {name: np.asarray(value) for name, value in inputs.items()}
