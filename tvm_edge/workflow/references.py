"""Tensors of a model as somebody else computes them: ONNX Runtime, or another build of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_edge.compiler.driver import compile_with
from tvm_edge.compiler.handing_out import KernelResult, compile_handing_out
from tvm_edge.errors import InputError, InvalidModelError, one_line
from tvm_edge.extras import require
from tvm_edge.files import temporary_folder
from tvm_edge.memory.plans import Plan
from tvm_edge.runtime import load
from tvm_edge.workflow.node_groups import Graph, Part, with_outputs

if TYPE_CHECKING:
    import onnx

__all__ = [
    "ONNX_RUNTIME",
    "Build",
    "Reference",
    "runtime_errors",
    "runtime_session",
    "runtime_tensors",
    "tensors_of",
]

ONNX_RUNTIME = "onnxruntime"

_PLAIN = ("ChooseLayouts", "BlockLayout", "FuseParallel")
"""Passes that a reference of ours goes without, beside Winograd's algorithm."""


_OF_WHOLE_MODELS = ("input_shapes", "input_values", "memory_budget", "progress")


@dataclass(frozen=True)
class Build:
    """A way to compile a model, and where it runs.

    Attributes
    ----------
    target : str, dict or Target
    options : mapping
        Those of :func:`tvm_edge.compile`.
    without : tuple of str
        Passes to leave out.
    winograd : bool
    remote : tvm_edge.Remote or None
        A board to run on in place of this machine.
    """

    target: Any
    options: Mapping[str, Any]
    without: tuple[str, ...] = ()
    winograd: bool = True
    remote: Any = None

    def compile(self, model: Any) -> Any:
        """Compile a model, and load it on the board."""
        return self._loaded(compile_with(model, self.target, {}, **self._all()))

    def compile_handing_out(self, model: Any) -> tuple[Any, tuple[KernelResult, ...]]:
        """Compile a model with the results of its kernels as outputs."""
        compiled, results = compile_handing_out(model, self.target, **self._all())
        return self._loaded(compiled), results

    def run(self, model: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compile a model and run it once; nothing of it stays on the board."""
        compiled = self.compile(model)
        try:
            outputs: dict[str, np.ndarray] = compiled.run(dict(inputs))
        finally:
            if self.remote is not None:
                compiled.close()
        return outputs

    def _loaded(self, compiled: Any) -> Any:
        if self.remote is None:
            return compiled
        threads, cpus = self.options.get("num_threads"), self.options.get("cpus")
        with temporary_folder("compared") as folder:
            path = compiled.export(folder / "model.tvme")
            return load(path, num_threads=threads, cpus=cpus, remote=self.remote)

    def of_parts(self) -> Build:
        """Return the build of parts of a model: their inputs have other names and their shapes.

        Names of nodes are those of the model, of which a part has some.
        """
        options = {k: v for k, v in self.options.items() if k not in _OF_WHOLE_MODELS}
        if not isinstance(options.get("fallback", "auto"), str):
            options["fallback"] = "auto"
        options.pop("precision_exceptions", None)
        return replace(self, options={**options, "parallel_fusion": False})

    def _all(self) -> dict[str, Any]:
        plan = Plan("compared", winograd=self.winograd)
        return {"way": plan, "without": self.without, "tuning_logs": None, **self.options}


@dataclass(frozen=True)
class Reference:
    """Tensors to compare with.

    Attributes
    ----------
    name : str
        Who computed them.
    tensors : dict of str to numpy.ndarray
    build : Build or None
        How, if not by ONNX Runtime.
    note : str
        Why it is not who was asked for.
    """

    name: str
    tensors: dict[str, np.ndarray]
    build: Build | None = None
    note: str = ""

    def run(self, part: Part) -> dict[str, np.ndarray]:
        """Compute a part of the model."""
        if self.build is not None:
            return self.build.of_parts().run(part.model, part.inputs)
        session = runtime_session(part.model)
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, part.inputs), strict=True))


def tensors_of(graph: Graph, inputs: Mapping[str, np.ndarray], reference: str | Build) -> Reference:
    """Compute every tensor of a graph that depends on its inputs.

    Parameters
    ----------
    graph : Graph
    inputs : mapping of str to numpy.ndarray
    reference : "onnxruntime" or Build
        Where ONNX Runtime refuses the model, float32 ``llvm`` without layouts and Winograd's
        algorithm takes its place.

    Raises
    ------
    MissingDependencyError
        ONNX Runtime is asked for and not installed.
    """
    if isinstance(reference, Build):
        return Reference(_said(reference), _by_build(graph, inputs, reference), reference)
    if reference != ONNX_RUNTIME:
        raise InputError(
            f"reference={reference!r} is not a valid value; use 'onnxruntime' or a target",
            name="reference",
            got=repr(reference),
        )
    runtime = require("onnxruntime", "compare", "to compare with ONNX Runtime")
    try:
        return Reference(f"ONNX Runtime {runtime.__version__}", runtime_tensors(graph, inputs))
    except runtime_errors() as err:
        shapes = {name: value.shape for name, value in inputs.items()}
        plain = Build("llvm", {"input_shapes": shapes}, _PLAIN, winograd=False)
        note = f"ONNX Runtime refuses the model ({one_line(err, 160)}); float32 llvm is compared"
        return Reference(_said(plain), _by_build(graph, inputs, plain), plain, note)


def _said(build: Build) -> str:
    precision = build.options.get("precision", "float32")
    plain = " without layouts and Winograd's algorithm" if build.without == _PLAIN else ""
    board = "" if build.remote is None else f" on board {build.remote.name}"
    return f"{precision} {build.target}{plain}{board}"


def runtime_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions by which ONNX Runtime refuses a model or its inputs.

    Its own ones have no common base but Exception.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as bindings

    kinds = [each for each in vars(bindings).values() if isinstance(each, type)]
    own = (each for each in kinds if issubclass(each, Exception))
    return (RuntimeError, ValueError, *own)


def runtime_session(model: onnx.ModelProto | str, *, optimize: bool = False) -> Any:
    """Open a model in ONNX Runtime on the CPU; node by node unless it may `optimize`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # an exception says as much
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def runtime_tensors(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute every tensor of a graph that depends on its inputs, by ONNX Runtime."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(graph.proto)
    for name in _all_tensors(graph):
        if name not in graph.outputs:
            model.graph.output.append(onnx.ValueInfoProto(name=name))  # it infers their types
    session = runtime_session(model)
    names = [output.name for output in session.get_outputs()]
    taken = {value.name for value in session.get_inputs()}
    found = session.run(names, {name: v for name, v in inputs.items() if name in taken})
    return {n: v for n, v in zip(names, found, strict=True) if isinstance(v, np.ndarray)}


def _all_tensors(graph: Graph) -> list[str]:
    return [name for node in graph.nodes for name in node.output if name in graph.running]


def _by_build(
    graph: Graph, inputs: Mapping[str, np.ndarray], build: Build
) -> dict[str, np.ndarray]:
    types = _types(graph)
    found = {name: types[name] for name in _all_tensors(graph) if name in types}
    model = with_outputs(graph.proto, found, found)
    try:
        return build.run(model, inputs)
    except InvalidModelError:  # of what operators of other domains return, nothing is known
        return build.run(graph.proto, inputs)


def _types(graph: Graph) -> dict[str, np.ndarray]:
    """An empty array of the type and the number of axes of each tensor whose type is known."""
    import onnx

    from tvm_edge.frontend.onnx_costs import tensor_infos

    found = {}
    for name, info in tensor_infos(graph.proto).items():
        if info.dtype and info.shape is not None:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(info.dtype)
            found[name] = np.empty([0] * len(info.shape), dtype)
    return found
