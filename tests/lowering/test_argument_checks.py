"""What kernels check of their arguments, and what they are spared."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from tvm_edge.lowering import cpu_pipeline
from tvm_edge.lowering.argument_checks import MADE

LENGTH = 64


@T.prim_func(s_tir=True)
def added(
    a: T.Buffer((LENGTH,), "float32"),
    b: T.Buffer((LENGTH,), "float32"),
    c: T.Buffer((LENGTH,), "float32"),
) -> None:
    T.func_attr({"tirx.is_scheduled": True, "global_symbol": "main"})
    for i in range(LENGTH):
        with T.sblock("c"):
            v = T.axis.spatial(LENGTH, i)
            c[v] = a[v] + b[v]


def lowered(func: tirx.PrimFunc) -> tvm.IRModule:
    target = tvm.target.Target("llvm", host="llvm")
    with target:
        mod = tirx.transform.BindTarget(target)(tvm.IRModule({"main": func}))
        return tvm.transform.Sequential(cpu_pipeline.PASSES)(mod)


def checked(mod: tvm.IRModule) -> dict[int, int]:
    """How many checks there are of each argument; -1: of their number."""
    found: dict[int, int] = {}

    def visit(stmt: tirx.AssertStmt) -> None:
        parts = [part.value for part in stmt.message_parts]
        named = [i for i, part in enumerate(parts) if "argument #" in part]
        place = int(parts[named[0] + 1]) if named else -1
        found[place] = found.get(place, 0) + 1

    tvm_ffi.structural_walk(mod["main"].body, (tirx.AssertStmt, visit))
    return found


def run(func: tirx.PrimFunc, *arrays: np.ndarray) -> None:
    """Run it on arrays, the last of which it writes."""
    cpu_pipeline.register()
    built = tvm.compile(tvm.IRModule({"main": func}), "llvm", tir_pipeline=cpu_pipeline.CPU)
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    built["main"](*tensors)
    arrays[-1][...] = tensors[-1].numpy()


def test_every_argument_is_checked_where_nothing_is_known() -> None:
    found = checked(lowered(added))
    assert set(found) == {-1, 0, 1, 2}
    assert found[0] >= 6  # type, rank, shape, strides, offset, device


def test_what_the_program_has_made_is_not() -> None:
    every = checked(lowered(added))
    found = checked(lowered(added.with_attr(MADE, [1, 2])))
    assert found == {place: count for place, count in every.items() if place < 1}
    assert MADE not in lowered(added.with_attr(MADE, [1, 2]))["main"].attrs


def test_the_others_are_refused_as_ever() -> None:
    func = added.with_attr(MADE, [1, 2])
    random = np.random.default_rng(0)
    a, b = random.standard_normal((2, LENGTH), np.float32)
    c = np.zeros_like(a)
    run(func, a, b, c)
    np.testing.assert_array_equal(c, a + b)
    for wrong in (a[1:], a.astype("float64"), a.reshape(1, -1)):
        with pytest.raises((TypeError, ValueError), match=r"argument #0 when calling"):
            run(func, wrong, b, c)


def test_a_kernel_keeps_its_own_assertions() -> None:
    """They stand behind the checks, and say nothing of arguments' types."""
    body = added.body.block.body
    own = tirx.AssertStmt(
        tirx.BufferLoad(added.params[0], [0]) > 0.0,
        tvm.ir.StringImm("ValueError"),
        [tvm.ir.StringImm("not so")],
    )
    root = added.body.block
    block = tvm.s_tir.SBlock([], [], [], root.name_hint, tirx.SeqStmt([own, body]))
    func = added.with_body(tvm.s_tir.SBlockRealize([], True, block)).with_attr(MADE, [0, 1, 2])
    found = checked(lowered(func))
    assert found[-1] == 1 + checked(lowered(added))[-1]
