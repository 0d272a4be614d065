"""Quantise a trained model with ONNX Runtime's tool, and say what it costs.

The settings are those that int8 kernels are best with: QDQ, weights of int8 by output channel and
symmetric, activations of uint8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_edge.errors import InputError, InvalidModelError, one_line
from tvm_edge.frontend import read_model
from tvm_edge.frontend.onnx_functions import standard_version
from tvm_edge.frontend.picture import Picture
from tvm_edge.workflow.box_labels import BoxLabels, Judge
from tvm_edge.workflow.calibration_data import Sample, read_samples
from tvm_edge.workflow.node_groups import Graph
from tvm_edge.workflow.quantization_loss import (
    AveragePrecision,
    LayerLoss,
    OutputLoss,
    Quantized,
)
from tvm_edge.workflow.references import runtime_errors, runtime_session, runtime_tensors
from tvm_edge.zoo import quantized

if TYPE_CHECKING:
    import onnx

__all__ = ["quantize"]

_LEAST_OPSET = 13  # scales by channel
_ROUNDS = 6
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_ACTIVATIONS = ("Clip", "Relu")
_JUDGED = 64  # samples that are compared


def quantize(
    model: Any,
    data: Any,
    *,
    picture: Picture | None = None,
    labels: BoxLabels | None = None,
    method: str = "minmax",
    count: int | None = None,
    exclude: str | Sequence[str] = (),
    max_drop: float = 0.01,
) -> Quantized:
    """Quantise a float32 model with calibration data.

    Nodes after the last convolution or matrix product stay float32.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or ``"zoo:NAME"``
    data : path or sequence of mapping
        A folder of pictures, an ``.npz`` file, or the inputs one by one.
    picture : Picture, optional
        Form in which the network wants pictures of a folder.
    labels : BoxLabels, optional
        Objects in the samples: the drop is what the mean average precision of a detector loses.
    method : {"minmax", "entropy", "percentile"}
    count : int, optional
        Samples to calibrate by at most.
    exclude : sequence of str or "auto"
        Nodes that stay float32; ``"auto"`` leaves out those that lose most, until the drop is at
        most `max_drop`.
    max_drop : float
        Largest drop for ``exclude="auto"``.

    Raises
    ------
    InvalidModelError
        The model is quantised already, or ONNX Runtime refuses it.
    InputError
        The data or the labels do not fit, or an output is not finite with them.
    MissingDependencyError
    """
    quantized.require_quantizer()
    _check(method, exclude, max_drop)
    proto = _prepared(read_model(model))
    samples = read_samples(proto, data, picture, count)
    graph = Graph(proto)
    known = set(graph.position)
    excluded: list[str] = [] if exclude == "auto" else list(exclude)
    for name in excluded:
        if name not in known:
            raise InputError(
                f"exclude names {name!r}, which is no node of the model; name one of its nodes",
                name="exclude",
                got=repr(name),
            )
    judge = None if labels is None else Judge(labels, samples)
    expected = _run(proto, samples.inputs if judge else samples.inputs[:_JUDGED])
    _check_finite(expected)
    precision = judge.checked(expected) if judge else None
    task = _Task(graph, samples.inputs, method, expected, judge, precision)
    best = last = task.quantized(excluded)
    if exclude != "auto":
        return best
    step = 1
    for _ in range(_ROUNDS):
        if best.drop <= max_drop:
            break
        worst = [layer for layer in last.layers if layer.node not in excluded][:step]
        if not worst:
            break
        excluded += [name for layer in worst for name in layer.nodes if name not in excluded]
        last = task.quantized(excluded)
        best = min(best, last, key=lambda each: each.drop)
        step *= 2
    return best


def _postprocessing(graph: Graph) -> tuple[str, ...]:
    """Nodes after the last product: int8 makes them no faster, and rounds boxes and scores.

    Activations of those products are one with them.
    """
    after = graph.after(_PRODUCTS)
    if len(after) == len(graph.nodes):
        return ()
    nodes = {name: graph.nodes[graph.position[name]] for name in after}
    return tuple(
        name
        for name, node in nodes.items()
        if node.op_type not in _ACTIVATIONS
        or graph.nodes[graph.producer(node.input[0])].op_type not in _PRODUCTS
    )


def _check(method: str, exclude: str | Sequence[str], max_drop: float) -> None:
    if method not in quantized.METHODS:
        raise InputError(
            f"method={method!r} is not a valid value; use one of {', '.join(quantized.METHODS)}",
            name="method",
            got=repr(method),
        )
    if isinstance(exclude, str) and exclude != "auto":
        raise InputError(
            f"exclude={exclude!r} is not a valid value; use 'auto', or a list of nodes",
            name="exclude",
            got=repr(exclude),
        )
    if not 0 <= max_drop <= 1:
        raise InputError(
            f"max_drop={max_drop!r} is not a valid value; use a share like 0.01", name="max_drop"
        )


def _prepared(proto: onnx.ModelProto) -> onnx.ModelProto:
    import onnx

    kinds = {node.op_type for node in proto.graph.node}
    done = sorted(k for k in kinds if k.startswith(("QLinear", "QuantizeLinear")))
    if done:
        raise InvalidModelError(
            f"the model is quantised already (it has {', '.join(done)}); compile it as it is, or "
            "quantise the float32 model"
        )
    if standard_version(proto) < _LEAST_OPSET:
        try:
            return onnx.version_converter.convert_version(proto, _LEAST_OPSET)
        except (RuntimeError, onnx.version_converter.ConvertError) as err:
            raise InvalidModelError(
                f"quantising needs opset {_LEAST_OPSET}, and onnx cannot convert the model "
                f"({one_line(err)}); export it with opset {_LEAST_OPSET} or newer"
            ) from err
    return proto


def _run(model: onnx.ModelProto, samples: Sequence[Sample]) -> list[dict[str, np.ndarray]]:
    try:
        session = runtime_session(model, optimize=True)
        names = [output.name for output in session.get_outputs()]
        return [dict(zip(names, session.run(names, each), strict=True)) for each in samples]
    except runtime_errors() as err:
        raise InvalidModelError(
            f"ONNX Runtime cannot run the model with the data: {one_line(err)}; check that the "
            "samples fit its inputs"
        ) from err


def _check_finite(outputs: Sequence[Mapping[str, np.ndarray]]) -> None:
    for number, each in enumerate(outputs):
        for name, value in each.items():
            if value.dtype.kind == "f" and value.size and not np.isfinite(value).any():
                raise InputError(
                    f"the output {name!r} of sample {number} has no finite number in float32; "
                    "check how the samples are prepared",
                    name=name,
                )


@dataclass(frozen=True)
class _Task:
    """A model to quantise, and the float32 results to judge by."""

    graph: Graph
    samples: Sequence[Sample]
    method: str
    expected: Sequence[Mapping[str, np.ndarray]]
    judge: Judge | None
    precision: float | None

    def quantized(self, excluded: Sequence[str]) -> Quantized:
        """Quantise all nodes but those excluded."""
        graph, samples, method = self.graph, self.samples, self.method
        try:
            kept = (*_postprocessing(graph), *excluded)
            model = quantized.quantize(graph.proto, samples, method=method, exclude=kept)
        # The tool raises whatever comes up inside of it.
        except Exception as err:
            raise InvalidModelError(
                f"ONNX Runtime cannot quantise the model ({type(err).__name__}: {one_line(err)}); "
                "check the model with tvm-edge compare"
            ) from err
        found = _run(model, samples[: len(self.expected)])
        outputs = tuple(_output_loss(name, self.expected, found) for name in graph.outputs)
        ours = _quantized_tensors(graph, model, samples[0])
        layers = _layer_losses(graph, ours)
        precision = None
        classes = [loss.agreement for loss in outputs if loss.agreement is not None]
        if self.judge is not None and self.precision is not None:
            precision = AveragePrecision(self.precision, self.judge(found), len(found))
            drop = max(precision.float32 - precision.int8, 0.0)
        elif classes:
            drop = 1 - min(classes)
        else:
            errors = [loss.error for loss in outputs if np.isfinite(loss.error)]
            drop = max([*errors, *_errors_of_candidates(graph, samples[0], ours)], default=0.0)
        return Quantized(
            model, method, len(samples), float(drop), outputs, layers, tuple(excluded), precision
        )


def _output_loss(
    name: str, expected: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
) -> OutputLoss:
    pairs = [(ours[name], theirs[name]) for ours, theirs in zip(found, expected, strict=True)]
    errors = [_rms(ours, theirs) for ours, theirs in pairs]
    agreement = None
    if all(_has_classes(ours) and ours.shape == theirs.shape for ours, theirs in pairs):
        same = [np.argmax(o, 1) == np.argmax(t, 1) for o, t in pairs]
        agreement = float(np.mean(np.concatenate([each.ravel() for each in same])))
    return OutputLoss(name, float(np.mean(errors)), agreement)


def _has_classes(value: np.ndarray) -> bool:
    """Return whether an output of one sample has a score for each of several classes."""
    shape = value.shape
    return value.dtype.kind == "f" and shape[:1] == (1,) and max(shape) == np.prod(shape) > 1


def _errors_of_candidates(
    graph: Graph, sample: Sample, ours: Mapping[str, np.ndarray]
) -> list[float]:
    """Errors of the boxes and scores that a suppression reads: as many, whatever it finds."""
    names = [
        name
        for node in graph.nodes
        if node.op_type == "NonMaxSuppression"
        for name in node.input[:2]
        if name in ours
    ]
    expected = runtime_tensors(graph, sample) if names else {}
    return [_rms(ours[name], expected[name]) for name in names if name in expected]


def _rms(actual: np.ndarray, expected: np.ndarray) -> float:
    """Root mean square of a difference; infinite where shapes differ, as of found objects."""
    if actual.shape != expected.shape:
        return float("inf")
    if not expected.size:
        return 0.0
    ours, theirs = actual.astype("float64"), expected.astype("float64")
    scale = float(np.sqrt(np.mean(theirs**2)))
    return float(np.sqrt(np.mean((ours - theirs) ** 2))) / (scale or 1.0)


def _quantized_tensors(
    graph: Graph, model: onnx.ModelProto, sample: Sample
) -> dict[str, np.ndarray]:
    """Tensors of the float32 model as the quantised one has them, rounded where it rounds.

    A tensor that is gone, as that between a convolution and its activation, has none.
    """
    found = {**sample, **runtime_tensors(Graph(model), sample)}
    rounded = {name: found.get(f"{name}_DequantizeLinear_Output") for name in graph.running}
    made = {name for node in graph.nodes for name in node.output} | set(graph.inputs)
    return {
        name: value if (value := rounded[name]) is not None else found[name]
        for name in graph.running & made
        if rounded[name] is not None or name in found
    }


def _layer_losses(graph: Graph, ours: Mapping[str, np.ndarray]) -> tuple[LayerLoss, ...]:
    """Compute every node in float32 on the quantised model's tensors."""
    known = {name: value for name, value in ours.items() if name in graph.running}
    groups = [
        graph.closed(g, known) for g in graph.singles() if all(end in known for end in g.ends)
    ]
    part = graph.part(groups, known, typed=False)
    session = runtime_session(part.model)
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(names, part.inputs), strict=True))
    losses = []
    for group in groups:
        first = graph.nodes[group.nodes[0]]
        error = max(_rms(known[end], found[part.outputs[end]]) for end in group.ends)
        members = tuple(str(graph.nodes[number].name) for number in group.nodes)
        losses.append(LayerLoss(first.name, first.op_type, error, members))
    return tuple(sorted(losses, key=lambda loss: -loss.error))
