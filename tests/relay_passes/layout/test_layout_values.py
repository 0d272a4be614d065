"""Values that blocks of channels must not change: infinity, not a number, filling."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.onnx_models import random_input, reference
from tests.schedules.blocked_harness import SPECS, Conv, check, compile_as, direct
from tests.schedules.harness import Graph

SPEC = SPECS[0]
ONE = {"kernel": (1, 1), "pads": (0, 0, 0, 0)}


def test_filling_does_not_reach_results() -> None:
    """24 channels of about 5 are filled up with zeros: their root is no number at -5."""
    graph = Graph()
    filters = graph.constant(0.01 * random_input((24, 32, 1, 1)))
    bias = graph.constant(np.full(24, 10, "float32"))
    data = graph.op("Relu", graph.op("Conv", graph.input(1, 32, 6, 6), filters, bias, name="first"))
    data = graph.op("Sqrt", graph.op("Sub", data, graph.constant(5.0)))
    graph.output(Conv(channels=24, filters=32, **ONE).build(graph, "last", data))
    check(graph, SPEC, direct)


def expected_values(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Return ONNX Runtime's only output, which it computes in plain layout."""
    (output,) = reference(model, inputs).values()
    return output


@pytest.mark.parametrize("filters", [32, 24], ids=["whole blocks", "filled"])
def test_infinity_in_an_image_that_is_clipped_later(filters: int) -> None:
    graph = Graph()
    first = Conv(channels=32, filters=filters, epilogue="clip").build(graph, "first")
    graph.output(Conv(channels=filters, filters=32, **ONE).build(graph, "last", first))
    model = graph.model()
    inputs = {"in0": graph.values["in0"].copy()}
    inputs["in0"][0, 3, 4, 4] = np.inf
    (actual,) = compile_as(model, SPEC, direct).model.run(inputs).values()
    np.testing.assert_allclose(actual, expected_values(model, inputs), rtol=1e-4, atol=1e-5)


def test_not_a_number_stays_at_its_pixels() -> None:
    graph = Graph()
    graph.output(Conv(channels=24, filters=24, epilogue="bias").build(graph))
    model = graph.model()
    inputs = {"in0": graph.values["in0"].copy()}
    inputs["in0"][0, 23, 4, 4] = np.nan
    expected = expected_values(model, inputs)
    (actual,) = compile_as(model, SPEC, direct).model.run(inputs).values()
    assert np.isnan(expected).sum() == 24 * 9
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
