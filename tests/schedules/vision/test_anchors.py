"""Prior boxes are MXNet's, written out from its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.schedules.vision.harness import run_operator
from tvm_edge import ops

# Half a unit of float32 for each of some ten operations on numbers of at most about 2.
TOLERANCE = 2e-6


def priors(
    height: int,
    width: int,
    sizes: tuple[float, ...] = (1.0,),
    ratios: tuple[float, ...] = (1.0,),
    steps: tuple[float, float] = (-1.0, -1.0),
    offsets: tuple[float, float] = (0.5, 0.5),
    clip: bool = False,
) -> np.ndarray:
    """``MultiBoxPrior`` of MXNet, box by box in float64."""
    even = min(steps) <= 0
    step_y, step_x = (1 / height, 1 / width) if even else steps
    shapes = [(s, ratios[0]) for s in sizes] + [(sizes[0], r) for r in ratios[1:]]
    boxes = []
    for row in range(height):
        for column in range(width):
            y, x = (row + offsets[0]) * step_y, (column + offsets[1]) * step_x
            for size, ratio in shapes:
                w = size * height / width * np.sqrt(ratio) / 2
                h = size / np.sqrt(ratio) / 2
                boxes.append((x - w, y - h, x + w, y + h))
    result = np.array(boxes)[None]
    return np.clip(result, 0, 1) if clip else result


CASES: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "one box": ((1, 1), {}),
    "a square map": ((5, 5), {"sizes": (0.2, 0.27), "ratios": (1.0, 2.0, 0.5)}),
    "a wide map, cut off": ((3, 7), {"sizes": (0.4,), "ratios": (1.0, 3.0, 1 / 3), "clip": True}),
    "a first ratio of its own": ((4, 3), {"sizes": (0.3, 0.9, 0.1), "ratios": (2.0, 0.25)}),
    "steps and offsets": ((6, 2), {"steps": (0.3, 0.1), "offsets": (0.0, 0.9)}),
    "one step alone counts for nothing": ((2, 3), {"steps": (0.3, -1.0)}),
}


@pytest.mark.parametrize("target", ["llvm", "opencl"], indirect=True)
@pytest.mark.parametrize(("shape", "how"), CASES.values(), ids=list(CASES))
def test_boxes(target: str, shape: tuple[int, int], how: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    data = random.standard_normal((2, 3, *shape)).astype("float32")
    expected = priors(*shape, **how)
    shift = random.standard_normal(expected.shape).astype("float32")

    def shifted(x: relax.Var, y: relax.Var) -> relax.Expr:
        # What is known when the model is compiled is no kernel: something has to be left to run.
        return relax.op.add(relax.op.add(ops.multibox_prior(x, **how), y), relax.op.mean(x))

    (actual,) = run_operator(target, shifted, data, shift)
    difference = actual - (expected + shift + data.mean(dtype="float64"))
    assert np.abs(difference).max() <= TOLERANCE


def test_a_map_without_cells(target: str) -> None:
    data, row = np.zeros((1, 3, 2, 4), "float32"), np.ones((1, 2, 4), "float32")

    def with_none(x: relax.Var, y: relax.Var) -> relax.Expr:
        nothing = relax.op.strided_slice(x, [2], [1], [1])
        return relax.op.concat([ops.multibox_prior(nothing), y], axis=1)

    (actual,) = run_operator(target, with_none, data, row)
    np.testing.assert_array_equal(actual, row)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"sizes": ()}, "sizes"),
        ({"ratios": (1.0, 0.0)}, "ratios"),
        ({"sizes": (float("nan"),)}, "sizes"),
        ({"steps": (1.0,)}, "steps"),
    ],
)
def test_what_makes_no_box_is_refused(how: dict[str, Any], what: str) -> None:
    data = relax.Var("data", relax.TensorType((1, 3, 4, 4), "float32"))
    with pytest.raises(ValueError, match=what):
        ops.multibox_prior(data, **how)
