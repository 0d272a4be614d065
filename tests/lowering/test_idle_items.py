"""Work-items without work of their own: they reach every barrier, or their launch stays alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from tests.lowering.members import assert_barriers_are_met, element_wise, run
from tests.schedules.gpu.harness import MALI, ORIN
from tvm_edge.hardware import resolve_target
from tvm_edge.lowering.idle_items import has_barrier, only_where
from tvm_edge.lowering.member_launches import merged_launches, with_merged_launches
from tvm_edge.lowering.parallel_members import compose
from tvm_edge.schedules.emit import barrier, function, hold, launch, registers, when

ITEMS = 16
COUNT = 3


def turns(
    loop: Callable[[Any, tirx.Expr, tirx.Expr, Callable[..., None]], None], items: int = ITEMS
) -> tirx.PrimFunc:
    """Each of a group's work-items passes what it has to the next one, `COUNT` times."""

    def body(data: Any, result: Any) -> None:
        with launch(2, items) as (group, item):
            kept = T.buffer_proxy(T.decl_buffer([items], "int32", scope="shared"))
            kept[item] = group * 100 + item
            barrier()

            def turn() -> None:
                moved = hold(kept[(item + 1) % items])
                barrier()
                kept[item] = moved
                barrier()

            loop(data, group, item, turn)
            result[group * items + item] = kept[item]

    return function([([2], "int32")], [([2 * items], "int32")], body).func


def by_constant(_data: Any, _group: Any, _item: Any, turn: Callable[[], None]) -> None:
    with T.serial(0, COUNT):
        turn()


def by_tensor(data: Any, _group: Any, _item: Any, turn: Callable[[], None]) -> None:
    with T.serial(0, data[0]):
        turn()


def by_group(data: Any, group: Any, _item: Any, turn: Callable[[], None]) -> None:
    for _ in range(COUNT):
        with when(data[group] > 0):
            turn()


def by_register(data: Any, _group: Any, _item: Any, turn: Callable[[], None]) -> None:
    """Run a number of turns that all work-items agree on, though idle ones cannot know it."""
    with T.serial(0, hold(data[0])):
        turn()


def while_register(data: Any, _group: Any, _item: Any, turn: Callable[[], None]) -> None:
    left = registers(1, "int32")
    left[0] = data[0]
    with T.While(left[0] > 0):
        turn()
        left[0] = left[0] - 1


SAFE = (by_constant, by_tensor, by_group)
UNSAFE = (by_register, while_register)


@pytest.mark.parametrize("loop", [*SAFE, *UNSAFE])
def test_small_groups_beside_large_ones(loop: Any, gpu: str) -> None:
    """In one launch where all of a group would meet, in one of their own where not."""
    resolved = resolve_target(gpu)
    sizes = (ITEMS, 4 * ITEMS)
    made = compose([turns(loop, sizes[0]), turns(by_constant, sizes[1])])
    data = np.full(2, COUNT, "int32")
    results = run(made, [data, data], resolved)
    for size, result in zip(sizes, results, strict=True):
        expected = [100 * g + (i + COUNT) % size for g in range(2) for i in range(size)]
        assert result.tolist() == expected
    func = with_merged_launches(made, resolved.target)
    assert assert_barriers_are_met(func) > 1
    assert merged_launches(func) == (((0, 1),) if loop in SAFE else ((0,), (1,)))


@pytest.mark.parametrize("loop", UNSAFE)
def test_those_that_share_nothing_are_dealt_to_groups_of_another_size(loop: Any, gpu: str) -> None:
    """Groups of 16 beside larger ones: nobody is idle."""
    resolved = resolve_target(gpu)
    other = element_wise(1, 40, 50)
    made = compose([turns(loop), other.scheduled(MALI if gpu == "opencl" else ORIN)])
    data = np.full(2, COUNT, "int32")
    passed, result = run(made, [data, *other.inputs], resolved)
    expected = [100 * g + (i + COUNT) % ITEMS for g in range(2) for i in range(ITEMS)]
    assert passed.tolist() == expected
    np.testing.assert_allclose(result, other.expected, atol=1e-5)
    func = with_merged_launches(made, resolved.target)
    assert merged_launches(func) == ((0, 1),)
    assert assert_barriers_are_met(func) > 1


@pytest.mark.parametrize("loop", UNSAFE)
def test_groups_of_one_size_have_no_idle_work_items(loop: Any) -> None:
    func = with_merged_launches(
        compose([turns(loop), turns(by_constant)]), resolve_target("mali-t860").target
    )
    assert merged_launches(func) == ((0, 1),)


def test_idle_work_items_read_nothing() -> None:
    """Only work-items with a place in the tensor read a value bound for later."""
    tensor = tirx.decl_buffer([4], "float32", "tensor", layout=None)
    result = tirx.decl_buffer([4], "float32", "result", layout=None)
    item = tirx.Var("item", "int32")
    value, place = tirx.Var("value", "float32"), tirx.Var("place", "int32")
    sync = tirx.Evaluate(ir.Call("tirx.tvm_storage_sync", [ir.StringImm("shared")], ret_ty="void"))
    stmts = [
        tirx.Bind(place, item * 2),
        tirx.Bind(value, tensor[place]),
        sync,
        tirx.BufferStore(result, value, [item]),
    ]
    made = only_where(item < 2, tirx.SeqStmt(stmts))
    assert isinstance(made.seq[0], tirx.Bind) and tvm_ffi.structural_equal(
        made.seq[0].value, stmts[0].value
    )
    assert "if_then_else(item < 2, tensor[place], T.float32(0.0))" in str(made.seq[1])
    assert has_barrier(made.seq[2]) and not isinstance(made.seq[2], tirx.IfThenElse)
    assert isinstance(made.seq[3], tirx.IfThenElse) and len(made.seq) == 4
