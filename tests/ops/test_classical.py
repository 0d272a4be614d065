"""Classical models, the domain ``ai.onnx.ml``, against ONNX Runtime or ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_edge
from tests.onnx_models import reference

DOMAIN = "ai.onnx.ml"
RANDOM = np.random.default_rng(11)


def model_of(
    operator: str, inputs: dict[str, np.ndarray], out: str = "float32", **attributes: Any
) -> onnx.ModelProto:
    """A node of which `inputs` are the operands, each of rank and type as given."""
    version = attributes.pop("version", 3)
    node = helper.make_node(operator, list(inputs), ["y"], domain=DOMAIN, **attributes)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(out))
    graph = helper.make_graph(
        [node],
        operator,
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in inputs.items()
        ],
        [
            helper.make_tensor_value_info(
                "y", kind, [None] * max(2, next(iter(inputs.values())).ndim)
            )
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


FEATURES: list[tuple[str, dict[str, np.ndarray], dict[str, Any]]] = [
    ("ArrayFeatureExtractor", {"x": normal(3, 7), "i": np.asarray([[6, 0, 0, 3]])}, {}),
    ("ArrayFeatureExtractor", {"x": normal(5), "i": np.asarray([4, 1])}, {}),
    ("ArrayFeatureExtractor", {"x": normal(2, 3, 4), "i": np.asarray([3])}, {}),
    ("Binarizer", {"x": normal(3, 5)}, {"threshold": 0.25}),
    ("Binarizer", {"x": normal(2, 3, 5)}, {}),
    ("Scaler", {"x": normal(4, 3)}, {"offset": [0.5, -1.0, 2.0], "scale": [2.0, 0.1, 3.0]}),
    ("Scaler", {"x": normal(4, 3)}, {"offset": [0.5], "scale": [2.0]}),
    ("Scaler", {"x": RANDOM.integers(-9, 9, (4, 3))}, {"offset": [1.0], "scale": [0.5]}),
    ("Imputer", {"x": normal(4, 3)}, {"imputed_value_floats": [1.0, 2.0, 3.0]}),
]


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(("operator", "inputs", "attributes"), FEATURES)
def test_features(
    operator: str, inputs: dict[str, np.ndarray], attributes: dict[str, Any], target: str
) -> None:
    model = model_of(operator, inputs, **{"version": 1, **attributes})
    found = tvm_edge.compile(model, target).run(inputs)["y"]
    expected = reference(model, inputs)["y"]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str, target: str) -> None:
    x = normal(5, 7)
    x[2] = 0
    model = model_of("Normalizer", {"x": x}, norm=norm, version=1)
    found = tvm_edge.compile(model, target).run({"x": x})["y"]
    np.testing.assert_allclose(found, reference(model, {"x": x})["y"], rtol=1e-5)


def test_imputer_of_nan(target: str) -> None:
    x = normal(6, 3)
    x[RANDOM.random((6, 3)) < 0.4] = np.nan
    values = [0.5, -2.0, 7.0]
    model = model_of(
        "Imputer",
        {"x": x},
        imputed_value_floats=values,
        replaced_value_float=float("nan"),
        version=1,
    )
    found = tvm_edge.compile(model, target).run({"x": x})["y"]
    np.testing.assert_array_equal(found, np.where(np.isnan(x), np.float32(values), x))


KEYS = [int(k) for k in RANDOM.choice(1000, 17, replace=False) - 500]
LABELS: list[tuple[str, str, dict[str, Any]]] = [
    ("int64", "int64", {"values_int64s": list(range(17))}),
    ("int64", "float32", {"values_floats": [i / 7 for i in range(17)], "default_float": 3.5}),
    ("float32", "int64", {"values_int64s": list(range(17)), "default_int64": -42}),
    ("float32", "float32", {"values_floats": [i / 7 for i in range(17)]}),
]


@pytest.mark.parametrize(("keys", "values", "attributes"), LABELS)
def test_label_encoder(keys: str, values: str, attributes: dict[str, Any], target: str) -> None:
    x = RANDOM.choice([*KEYS, 999, -999, 3], (5, 13)).astype(keys)
    name = "keys_int64s" if keys == "int64" else "keys_floats"
    own = KEYS if keys == "int64" else [float(k) for k in KEYS]
    model = model_of("LabelEncoder", {"x": x}, values, version=4, **{name: own}, **attributes)
    found = tvm_edge.compile(model, target).run({"x": x})["y"]
    assert found.dtype == values
    np.testing.assert_array_equal(found, reference(model, {"x": x})["y"])


def test_label_encoder_of_nan_and_of_a_repeated_key() -> None:
    """The last of a repeated key counts, and every NaN is the key NaN."""
    x = np.asarray([[np.nan, 2.0, 1.0], [5.0, 1.0, np.nan]], "float32")
    model = model_of(
        "LabelEncoder",
        {"x": x},
        "int64",
        keys_floats=[1.0, float("nan"), 2.0, 1.0],
        values_int64s=[10, 20, 30, 40],
        version=4,
    )
    found = tvm_edge.compile(model, "llvm").run({"x": x})["y"]
    np.testing.assert_array_equal(found, [[20, 30, 40], [-1, 40, 20]])


def test_label_encoder_of_tensors() -> None:
    x = RANDOM.integers(0, 9, (4, 5), "int64")
    model = model_of(
        "LabelEncoder",
        {"x": x},
        "float64",
        keys_tensor=numpy_helper.from_array(np.asarray([7, 0, 3])),
        values_tensor=numpy_helper.from_array(np.asarray([0.5, 0.25, 0.125])),
        default_tensor=numpy_helper.from_array(np.asarray([9.0])),
        version=4,
    )
    found = tvm_edge.compile(model, "llvm").run({"x": x})["y"]
    table = {7: 0.5, 0: 0.25, 3: 0.125}
    np.testing.assert_array_equal(found, np.vectorize(lambda v: table.get(v, 9.0))(x))


def random_trees(
    modes: list[int], *, trees: int = 5, features: int = 4, targets: int = 3, dtype: str = "float32"
) -> dict[str, Any]:
    """Attributes of a TreeEnsemble of trees of random forms, up to seven steps deep."""
    nodes: list[tuple[Any, ...]] = []
    leaves: list[tuple[float, int]] = []

    def grow(depth: int) -> tuple[int, int]:
        """Return a node or a leaf, and which of the two it is."""
        if depth and (depth == 7 or RANDOM.random() < 0.3):
            leaves.append((float(RANDOM.standard_normal()), int(RANDOM.integers(targets))))
            return len(leaves) - 1, 1
        place = len(nodes)
        nodes.append(())
        (yes, yes_leaf), (no, no_leaf) = grow(depth + 1), grow(depth + 1)
        feature, mode = int(RANDOM.integers(features)), int(RANDOM.choice(modes))
        # Of few values, so that equality is met.
        split = float(RANDOM.integers(-2, 3)) / 2
        nodes[place] = (feature, mode, split, yes, yes_leaf, no, no_leaf)
        return place, 0

    roots = [grow(0)[0] for _ in range(trees)]
    columns = list(zip(*nodes, strict=True))
    return {
        "tree_roots": roots,
        "nodes_featureids": columns[0],
        "nodes_modes": numpy_helper.from_array(np.asarray(columns[1], "uint8")),
        "nodes_splits": numpy_helper.from_array(np.asarray(columns[2], dtype)),
        "nodes_truenodeids": columns[3],
        "nodes_trueleafs": columns[4],
        "nodes_falsenodeids": columns[5],
        "nodes_falseleafs": columns[6],
        "leaf_weights": numpy_helper.from_array(np.asarray([w for w, _ in leaves], dtype)),
        "leaf_targetids": [t for _, t in leaves],
        "n_targets": targets,
        "version": 5,
    }


def features(rows: int, count: int, dtype: str = "float32") -> np.ndarray:
    return (RANDOM.integers(-3, 4, (rows, count)) / 2).astype(dtype)


@pytest.mark.diagonals(4)
@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
@pytest.mark.parametrize("modes", [[0], [1, 2, 3], [0, 4, 5]], ids=str)
def test_tree_ensemble(modes: list[int], aggregate: int, target: str) -> None:
    x = features(13, 4)
    attributes = random_trees(modes, trees=9, targets=2)
    model = model_of("TreeEnsemble", {"x": x}, aggregate_function=aggregate, **attributes)
    found = tvm_edge.compile(model, target).run({"x": x})["y"]
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    unvoted = np.abs(expected) > 1e30  # where ONNX Runtime has 0
    np.testing.assert_allclose(found, np.where(unvoted, 0, expected), rtol=1e-5, atol=1e-6)


def test_tree_ensemble_of_missing_features() -> None:
    x = features(40, 4, "float64")
    x[RANDOM.random(x.shape) < 0.3] = np.nan
    attributes = random_trees([0, 2, 4], trees=4, dtype="float64")
    count = len(attributes["nodes_featureids"])
    ways = [int(way) for way in RANDOM.integers(0, 2, count)]
    attributes["nodes_missing_value_tracks_true"] = ways
    model = model_of("TreeEnsemble", {"x": x}, "float64", **attributes)
    found = tvm_edge.compile(model, "llvm").run({"x": x})["y"]
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_tree_ensemble_of_sets(target: str) -> None:
    """Nodes that look into sets of several members, beside others."""
    x = features(40, 4)
    attributes = random_trees([0, 6], trees=4)
    modes = numpy_helper.to_array(attributes["nodes_modes"])
    members: list[float] = []
    for _ in range(int((modes == 6).sum())):
        size = int(RANDOM.integers(1, 5))
        # No zero: the reference takes it for the end of all sets.
        chosen = RANDOM.choice([-1.5, -1.0, -0.5, 0.5, 1.0, 1.5], size, replace=False)
        members += [*map(float, chosen), float("nan")]
    values = numpy_helper.from_array(np.asarray(members, "float32"))
    model = model_of("TreeEnsemble", {"x": x}, membership_values=values, **attributes)
    found = tvm_edge.compile(model, target).run({"x": x})["y"]
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def regressor(targets: int, **more: Any) -> dict[str, Any]:
    """The attributes of a TreeEnsembleRegressor of two trees; a leaf votes for every target."""
    voters = [(0, 2), (0, 3), (0, 4), (1, 1), (1, 2)]
    votes = [(tree, node, target) for tree, node in voters for target in range(targets)]
    return {
        "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
        "nodes_featureids": [0, 1, 0, 0, 0, 2, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "BRANCH_GT", *["LEAF"] * 3, "BRANCH_LT", *["LEAF"] * 2],
        "nodes_values": [0.5, -0.5, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0],
        "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0],
        "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0],
        "target_treeids": [tree for tree, _, _ in votes],
        "target_nodeids": [node for _, node, _ in votes],
        "target_ids": [target for _, _, target in votes],
        "target_weights": [float(w) for w in np.sin(np.arange(len(votes)) + 1.0) * 3],
        "n_targets": targets,
        **more,
    }


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    "attributes",
    [
        regressor(1),
        regressor(2, base_values=[0.5, -1.0]),
        regressor(3, aggregate_function="AVERAGE"),
        regressor(1, aggregate_function="MAX"),
        regressor(2, aggregate_function="MIN", base_values=[2.0, 0.5]),
        regressor(2, post_transform="LOGISTIC"),
        regressor(2, post_transform="SOFTMAX"),
    ],
    ids=range(7),
)
def test_tree_ensemble_regressor(attributes: dict[str, Any], target: str) -> None:
    x = normal(17, 3)
    model = model_of("TreeEnsembleRegressor", {"x": x}, version=1, **attributes)
    found = tvm_edge.compile(model, target).run({"x": x})["y"]
    np.testing.assert_allclose(found, reference(model, {"x": x})["y"], rtol=1e-5, atol=1e-6)


def test_a_tree_that_leads_back_to_itself() -> None:
    x = normal(2, 3)
    attributes = regressor(1)
    attributes["nodes_truenodeids"] = [1, 1, 0, 0, 0, 1, 0, 0]
    model = model_of("TreeEnsembleRegressor", {"x": x}, version=1, **attributes)
    with pytest.raises(tvm_edge.InvalidModelError, match="back to itself"):
        tvm_edge.compile(model, "llvm")


def test_a_feature_that_is_not_there() -> None:
    x = normal(2, 2)
    model = model_of("TreeEnsembleRegressor", {"x": x}, version=1, **regressor(1))
    with pytest.raises(tvm_edge.InvalidModelError, match="feature that is not one of 2"):
        tvm_edge.compile(model, "llvm")
