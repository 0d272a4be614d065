"""Whatever is handed to ``run`` ends in outputs or in an ``InputError`` that names the input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvm_edge
from tests.onnx_models import conv_relu
from tvm_edge import InputError

SHAPE = (1, 3, 16, 16)


class _Liar:
    """Says that it is an array."""

    shape, dtype = SHAPE, np.dtype("float32")

    def __init__(self, device: Any, capsule: Any) -> None:
        self._device, self._capsule = device, capsule

    def __dlpack_device__(self) -> Any:
        return self._device

    def __dlpack__(self, **_: Any) -> Any:
        if isinstance(self._capsule, Exception):
            raise self._capsule
        return self._capsule


_dtypes = st.sampled_from(
    (
        *("float32", "float64", "float16", ">f4", "int8", "int64", "uint8", "bool", "complex64"),
        *("O", "S4", "U3", "datetime64[s]", "timedelta64[ns]", "V8", [("a", "f4"), ("b", "i2")]),
    )
)
_shapes = st.sampled_from([SHAPE, (3, 16, 16), (), (0,), (1, 3, 16, 0), (1,) * 20, (16, 16, 3, 1)])
_arrays = st.builds(lambda shape, dtype: np.zeros(shape, dtype), _shapes, _dtypes)
_views = st.sampled_from(
    [
        np.zeros((1, 3, 32, 16), "float32")[:, :, ::2],
        np.zeros((1, 3, 32, 16), "float32")[:, :, ::-2],
        np.broadcast_to(np.float32(1), SHAPE),
        np.zeros(SHAPE, "float32", order="F"),
        np.zeros(3 * 256 * 4 + 1, "uint8")[1:].view("float32").reshape(SHAPE),
        np.ma.masked_array(np.zeros(SHAPE, "float32")),
        np.zeros((3, 256), "float32").view(np.matrix),
        np.broadcast_to(np.float32(1), (2**40, 2**20)),
    ]
)
_plain = st.sampled_from(
    [None, 1, 1.5, "x", b"x", [], [[1.0]], [[1.0], [1.0, 2.0]], {}, object(), type, np, Ellipsis]
)
_liars = st.builds(
    _Liar,
    st.sampled_from([(1, 0), (2, 0), (99, -1), None, (1,), ("cpu", 0), (4, 7)]),
    st.sampled_from([None, 1, "capsule", object(), ValueError("no"), MemoryError(), KeyError(1)]),
)
_values = st.one_of(_arrays, _views, _plain, _liars)


@pytest.fixture(scope="module")
def model() -> tvm_edge.CompiledModel:
    return tvm_edge.compile(conv_relu(), "llvm")


@settings(max_examples=300, deadline=None)
@given(value=_values)
def test_any_value(model: tvm_edge.CompiledModel, value: Any) -> None:
    try:
        outputs = model.run({"data": value})
    except InputError as err:
        assert "data" in str(err) and err.name == "data" and err.expected and err.got
        return
    assert np.shape(value) == SHAPE and outputs["pooled"].shape == (1, 8, 1, 1)


@settings(max_examples=100, deadline=None)
@given(
    inputs=st.one_of(
        _plain,
        st.lists(_values, max_size=2),
        st.dictionaries(
            st.one_of(st.sampled_from(["data", "Data", ""]), st.text(), st.integers(), st.none()),
            _values,
            max_size=3,
        ),
    )
)
def test_any_dictionary(model: tvm_edge.CompiledModel, inputs: Any) -> None:
    try:
        model.run(inputs)
    except InputError as err:
        assert str(err)


@settings(max_examples=50, deadline=None)
@given(outputs=st.one_of(_plain, st.lists(st.one_of(_plain, st.text()), max_size=2)))
def test_any_wish_for_outputs(model: tvm_edge.CompiledModel, outputs: Any) -> None:
    try:
        model.run({"data": np.zeros(SHAPE, "float32")}, outputs=outputs)
    except InputError as err:
        assert str(err)
