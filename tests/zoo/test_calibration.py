"""The weights make a network that can tell a right compiler from a wrong one.

Activations keep unit scale, outputs follow the picture and the weights, and rounding is not
amplified: what the project's tolerance of 1e-4 of the largest value has to rest on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.marks import in_full
from tests.zoo.networks import CLASSIFIERS, HUGE, marked, reduced
from tvm_edge import zoo
from tvm_edge.zoo.evaluate import evaluate

TOLERANCE = 1e-4

Models = Callable[[str], onnx.ModelProto]


def evaluate_float64(
    model: onnx.ModelProto,
    feeds: dict[str, NDArray[np.float32]],
    given: dict[str, NDArray[Any]],
) -> dict[str, NDArray[Any]]:
    """Every tensor of `model` up to its last NonMaxSuppression, in float64.

    The others' results are `given`: a box may be kept or not for a rounding error.
    """
    values = {k: v.astype(np.float64) for k, v in feeds.items()}
    for initializer in model.graph.initializer:
        array = numpy_helper.to_array(initializer)
        values[initializer.name] = array.astype(np.float64) if array.dtype.kind == "f" else array
    for node in model.graph.node:
        if node.op_type == "NonMaxSuppression":
            if node.output[0] not in given:
                break
            values[node.output[0]] = given[node.output[0]]
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        inputs = [values[i] if i else None for i in node.input]
        results = evaluate(node.op_type, inputs, len(node.output), **attributes)
        values.update(zip(node.output, results, strict=True))
    return values


@pytest.mark.parametrize("name", reduced())
def test_activations_keep_unit_scale(name: str, small: Models, session: Callable[..., Any]) -> None:
    check_unit_scale(small(name), session)


@pytest.mark.parametrize(
    "name",
    ["squeezenet1_0", *in_full(*(n for n in zoo.names() if n not in HUGE | {"squeezenet1_0"}))],
)
def test_activations_keep_unit_scale_at_full_size(
    name: str, full: Models, session: Callable[..., Any]
) -> None:
    check_unit_scale(full(name), session)


def check_unit_scale(model: onnx.ModelProto, session: Callable[..., Any]) -> None:
    # Bounds: a residual branch's last normalisation is scaled to 0.35, SqueezeNet's class scores
    # to 4; everything else is made for 1 to 1.5.
    kinds = ("Conv", "BatchNormalization", "Gemm")
    layers = {n.name: n.output[0] for n in model.graph.node if n.op_type in kinds}
    values = session(model, list(layers.values()))(zoo.sample_input(model))
    deviations = {layer: float(values[tensor].std()) for layer, tensor in layers.items()}
    assert len(deviations) >= 16
    outside = {layer: d for layer, d in deviations.items() if not 0.2 < d < 5}
    assert not outside
    assert 0.7 < np.median(list(deviations.values())) < 1.6


@pytest.mark.parametrize("name", marked(CLASSIFIERS))
def test_logits_have_a_scale_of_one_to_three_and_follow_the_picture(
    name: str, full: Models, session: Callable[..., Any]
) -> None:
    model = full(name)
    run = session(model)
    logits = np.stack([run(zoo.sample_input(model, seed))["logits"][0] for seed in range(5)])
    assert ((0.8 < logits.std(axis=1)) & (logits.std(axis=1) < 3)).all()
    # At least a quarter of what separates classes is the picture, not a fixed preference.
    assert logits.std(axis=0).mean() > 0.25 * logits.std()
    assert len(set(logits.argmax(axis=1))) > 2


@pytest.mark.parametrize("name", marked())
def test_rounding_is_not_amplified(
    name: str, full: Models, session: Callable[..., Any], dense_outputs: Any, moved: Any
) -> None:
    # A fifth of the tolerance at most: the rest is for other summation orders and for Winograd.
    model = full(name)
    outputs, feeds = dense_outputs(model), zoo.sample_input(model)
    *proposing, _ = [n.output[0] for n in model.graph.node if n.op_type == "NonMaxSuppression"] or [
        None
    ]
    rounded = session(model, [*outputs, *proposing])(feeds)
    exact = evaluate_float64(model, feeds, {k: rounded.pop(k) for k in proposing})
    assert moved(rounded, {k: exact[k] for k in outputs}) < TOLERANCE / 5


@pytest.mark.parametrize("name", reduced())
def test_a_weight_shows_in_the_output(
    name: str, small: Models, session: Callable[..., Any], dense_outputs: Any, moved: Any
) -> None:
    model = small(name)
    weights = {
        i.name: numpy_helper.to_array(i)
        for i in model.graph.initializer
        if i.name.endswith(".weight")
    }
    # Fed as inputs, so that one session serves all changes.
    for key, value in weights.items():
        info = helper.make_tensor_value_info(key, onnx.TensorProto.FLOAT, value.shape)
        model.graph.input.append(info)
    run = session(model, dense_outputs(model))
    feeds = zoo.sample_input(small(name))
    before = run(feeds)

    def change(key: str) -> float:
        changed = weights[key].copy()
        # The largest weight of the kernel's centre, doubled: on a 1x1 map only that is used.
        centre = changed
        if changed.ndim == 4:
            centre = changed[..., changed.shape[-2] // 2, changed.shape[-1] // 2]
        centre[np.unravel_index(np.abs(centre).argmax(), centre.shape)] *= 2
        return float(moved(run({**feeds, key: changed}), before))

    changes = [change(key) for key in weights]
    assert np.median(changes) > 100 * TOLERANCE
    # A weight behind a ReLU that is closed for this picture does not show; few are.
    assert np.quantile(changes, 0.1) > 10 * TOLERANCE


@pytest.mark.parametrize("name", marked())
def test_a_block_of_the_input_shows_in_the_output(
    name: str, full: Models, session: Callable[..., Any], dense_outputs: Any, moved: Any
) -> None:
    model = full(name)
    run = session(model, dense_outputs(model))
    feeds = zoo.sample_input(model)
    data = feeds["data"].copy()
    height, width = data.shape[2:]
    data[:, :, : height // 8, : width // 8] *= -1
    assert moved(run({"data": data}), run(feeds)) > 100 * TOLERANCE


@pytest.mark.parametrize("name", ["mobilenet_v1", "mobilenet_v2", "ssd_mobilenet_v1"])
@pytest.mark.parametrize("bound", ["min", "max"])
def test_both_bounds_of_relu6_matter(
    name: str,
    bound: str,
    small: Models,
    session: Callable[..., Any],
    dense_outputs: Any,
    moved: Any,
) -> None:
    # Even where a single one of the many is dropped, half-way through the network.
    model = small(name)
    outputs, feeds = dense_outputs(model), zoo.sample_input(model)
    before = session(model, outputs)(feeds)
    bounds = [i for i in model.graph.initializer if i.name.endswith(f".{bound}")]
    middle = bounds[len(bounds) // 2]
    free = np.array({"min": -1e6, "max": 1e6}[bound], np.float32)
    middle.CopyFrom(numpy_helper.from_array(free, middle.name))
    assert moved(session(model, outputs)(feeds), before) > 10 * TOLERANCE
