"""Values of constants as arrays."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tvm_edge.relay_passes.ir.expressions import constant_of


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64", "bool"])
def test_constant_is_read_where_it_is(dtype: str) -> None:
    made = np.arange(6).reshape(2, 3).astype(dtype)
    constant = relax.const(made, dtype)
    first, again = constant_of(constant), constant_of(constant)
    assert first is not None and again is not None
    np.testing.assert_array_equal(first, made)
    assert first.dtype == made.dtype and np.shares_memory(first, again)
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1


def test_constant_of_a_type_that_numpy_lacks_is_copied() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    made = np.array([1, -2.5, 3e38]).astype(ml_dtypes.bfloat16)
    value = constant_of(relax.const(made, "bfloat16"))
    assert value is not None
    np.testing.assert_array_equal(value.astype("float32"), made.astype("float32"))


def test_only_constants_have_a_value() -> None:
    assert constant_of(relax.Var("x", relax.TensorType((1,), "float32"))) is None
