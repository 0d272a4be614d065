"""Accumulators of a CPU's kernels are on the stack, and LLVM moves them into registers."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx

from tvm_edge.lowering.register_arrays import RegisterArrays


@pytest.mark.parametrize(
    ("scope", "elements", "on_stack"),
    [("local", 28 * 16, True), ("local", 4096, False), ("global", 64, False)],
)
def test_local_arrays_of_known_size(scope: str, elements: int, on_stack: bool) -> None:
    array = tirx.decl_buffer([elements], "float32", "array", scope=scope)
    allocation = tirx.AllocBuffer(array)
    body = tirx.SeqStmt([allocation, tirx.BufferStore(array, tirx.const(0, "float32"), [0])])
    done = RegisterArrays()(tvm.IRModule({"main": tirx.PrimFunc([], body)}))["main"]
    assert ("disable_lower_builtin" in done.body.seq[0].annotations) == on_stack
