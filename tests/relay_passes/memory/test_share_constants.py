"""Constants alike are one, whoever made them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from tvm_edge.relay_passes.memory.share_constants import ShareConstants


def constants(*arrays: np.ndarray) -> list[Any]:
    """Return the constants left in a function that reads each, in order."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            read = [relax.op.astype(relax.const(array), "float32") for array in arrays]
            sums = [builder.emit(relax.op.add(data, each)) for each in read]
            result = builder.emit_output(relax.Tuple(sums))
        builder.emit_func_output(result)
    shared = ShareConstants()(builder.get())
    found: list[Any] = []
    tvm_ffi.structural_walk(shared["main"], (tvm.ir.GenericConst, found.append))
    return found


def test_equal_ones() -> None:
    ones, twos = np.ones((4, 4), "float32"), np.full((4, 4), 2, "float32")
    first, second, third, fourth = constants(ones, twos, ones.copy(), twos.copy())
    assert first.same_as(third) and second.same_as(fourth)
    assert (second.value.numpy() == 2).all() and (first.value.numpy() == 1).all()


def test_equal_bytes_of_another_shape_or_type() -> None:
    zeros = np.zeros((4, 4), "float32")
    found = constants(zeros, zeros[:1], zeros.astype("int32"), zeros[:1].astype("int32"))
    assert len(set(found)) == 4


def test_equal_at_the_beginning_only() -> None:
    zeros = np.zeros((8, 4, 4), "float32")
    other = zeros.copy()
    other[-1, -1, -1] = 1
    first, second, third = constants(zeros, other, zeros.copy())
    assert first.same_as(third) and not first.same_as(second)
    assert second.value.numpy()[-1, -1, -1] == 1
