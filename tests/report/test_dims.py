"""Open dimensions: what they accept, and how they are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_edge import Dim, InputError, TensorSpec
from tvm_edge.report.dims import by_name, parse_dim


@st.composite
def dims(draw: st.DrawFn) -> Dim:
    multiple = draw(st.sampled_from([1, 2, 8, 32]))
    least = draw(st.integers(0, 100))
    most = draw(st.none() | st.integers(0, 50).map(lambda more: least + multiple + more))
    typical = draw(st.none() | st.just(-(-least // multiple) * multiple))
    return Dim(draw(st.sampled_from(["w", "batch", "h0"])), least, most, multiple, typical)


@given(dims())
def test_text_and_dictionary_say_everything(dim: Dim) -> None:
    assert parse_dim(dim.text) == dim
    assert Dim.from_dict(dim.to_dict()) == dim


@given(dims(), st.booleans())
def test_the_assumed_length_is_one_of_it(dim: Dim, is_batch: bool) -> None:
    assert not dim.refusal(dim.assumed(is_batch))


@given(dims(), st.integers(0, 300))
def test_a_length_is_refused_for_a_reason(dim: Dim, length: int) -> None:
    fits = (
        dim.min <= length and (dim.max is None or length <= dim.max) and not length % dim.multiple
    )
    assert bool(dim.refusal(length)) != fits


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": ""}, "no name"),
        ({"name": "w\n"}, "no name"),
        ({"name": "w", "min": -1}, "min=-1, which is no length"),
        ({"name": "w", "max": 2.5}, "max=2.5, which is no length"),
        ({"name": "w", "multiple": 0}, "multiple=0"),
        ({"name": "w", "multiple": True}, "multiple=True"),
        ({"name": "w", "min": 9, "max": 15, "multiple": 8}, "has no length: 9 to 15"),
        ({"name": "w", "min": 9, "max": 8}, "has no length: 9 to 8"),
        ({"name": "w", "min": 8, "max": 16, "typical": 32}, "typical=32, and takes 8 to 16"),
    ],
)
def test_what_is_no_dimension(fields: dict, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Dim(**fields)


@pytest.mark.parametrize("text", ["w=", "w=3", "w=..5", "w/", "w@", "=1..2", "w=1..2/x"])
def test_text_that_is_no_dimension(text: str) -> None:
    with pytest.raises(ValueError, match="is no dimension"):
        parse_dim(text)


def test_one_name_is_one_dimension() -> None:
    same = Dim("w", 1, 9)
    assert by_name([same, Dim("h"), Dim("w", 1, 9)]) == {"w": same, "h": Dim("h")}
    with pytest.raises(InputError, match=r"'w' is w=1\.\.9 and w; one name is one length"):
        by_name([same, Dim("w")])


def test_the_signature_of_an_input() -> None:
    spec = TensorSpec("x", ("n", 3, "w"), "float32", dims=(Dim("n", typical=2), Dim("w", 8)))
    assert spec.typical_shape == (2, 3, 8)
    assert TensorSpec.from_dict(spec.to_dict()) == spec
    assert str(spec) == "x: float32[n, 3, w]"
