"""Kernels that are composed: what they are called with, what is refused, and merged loops."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from tests.lowering.members import (
    Member,
    conv,
    element_wise,
    pinned,
    product,
    run,
    softmax,
    some,
    sums,
)
from tests.marks import in_full
from tests.schedules.gpu.harness import MALI
from tests.schedules.harness import assert_close
from tvm_edge.hardware import ResolvedTarget, resolve_target
from tvm_edge.lowering.member_launches import merged_launches, with_merged_launches
from tvm_edge.lowering.outline_members import OutlineMembers
from tvm_edge.lowering.parallel_members import MOST_ARGUMENTS, PARALLEL, can_compose, compose
from tvm_edge.schedules.base import workspace_of


@pytest.fixture(scope="module")
def host() -> ResolvedTarget:
    return resolve_target("llvm")


def check(members: list[Member], host: ResolvedTarget) -> None:
    """Merged, members give what they give alone, bit for bit, and what NumPy gives."""
    funcs = [member.scheduled(host.spec) for member in members]
    inputs = [array for member in members for array in member.inputs]
    results = iter(run(compose(funcs), inputs, host))
    for member, func in zip(members, funcs, strict=True):
        alone, *_ = run(func, member.inputs, host)
        together, *_ = [next(results) for _ in range(1 + len(workspace_of(func)))]
        np.testing.assert_array_equal(together, alone)
        assert_close(together, member.expected.astype("float32"))


def parallel_loops(func: tirx.PrimFunc) -> int:
    count = 0

    def visit(loop: tirx.For) -> None:
        nonlocal count
        count += loop.kind == tirx.ForKind.PARALLEL

    tvm_ffi.structural_walk(func.body, (tirx.For, visit))
    return count


LARGE = (conv(1, 16, 20, 16), conv(2, 16, 33, 16, 1), product(3, 130, 70, 120))


def test_parameters_are_inputs_and_then_results() -> None:
    one, other = softmax(0, 40, 300).scheduled(MALI), sums(1, 5, 70).scheduled(MALI)
    assert len(workspace_of(one)) > 1
    made = compose([one, other, other])
    shapes = [[int(d) for d in param.shape] for param in made.params]
    results = [[int(d) for d in param.shape] for param in one.params][1:]
    assert shapes == [[40, 300], [5, 70], [5, 70], *results, [5], [5]]
    names = [param.name for param in made.params]
    assert len(set(names)) == len(names)
    moved = compose([one, other], outputs=[1, 1])
    assert len(moved.params) == len(one.params) + len(other.params)
    assert [int(d) for d in moved.params[1].shape] == results[0]
    shared = compose([other, one, other], outputs=[1, 1, 1], results=[1, 0, 1])
    assert len(shared.params) == len(one.params) + 2 * len(other.params) - 1
    assert [[int(d) for d in param.shape] for param in shared.params][-2:] == [results[-1], [5]]
    # Each member is given parameters, also where another one was there first.
    params = list(shared.params)
    given = [
        [params.index(name.data.args[0]) for name in part.body.seq[:-1]]
        for part in shared.body.block.body.seq
    ]
    inputs = list(range(len(params) - 2))
    results_of = [own[-1] for own in given]
    assert results_of == [len(params) - 1, len(params) - 2, len(params) - 1]
    assert [place for own in given for place in own[:-1]] == inputs


def test_one_member_twice(host: ResolvedTarget) -> None:
    """With variables and arrays of their own."""
    same = product(5, 130, 70, 40)
    func = same.scheduled(host.spec)
    made = compose([func, func])
    assert tvm.tirx.analysis.verify_ssa(made)
    check([same, same], host)


def test_members_are_lowered_once(host: ResolvedTarget) -> None:
    """Whatever kernels they are in, and however often: by identity or because they are alike."""
    one, other = (member.scheduled(host.spec) for member in LARGE[:2])
    kernels = {"a": compose([one, other, one]), "b": compose([other, one])}
    made = OutlineMembers()(tvm.IRModule(kernels))
    assert len(made.functions) == len(kernels) + 2
    alike = compose([LARGE[0].scheduled(host.spec), other])
    assert len(OutlineMembers()(tvm.IRModule({**kernels, "c": alike})).functions) == 3 + 2
    # One that is called by itself, too, is lowered as the member; of another kind it would not be.
    third = LARGE[2].scheduled(host.spec)
    both = OutlineMembers()(tvm.IRModule({**kernels, "c": one, "d": third}))
    assert len(both.functions) == 4 + 2
    assert isinstance(both["c"].body, tirx.Evaluate)
    assert not isinstance(both["d"].body, tirx.Evaluate)
    apart = OutlineMembers()(tvm.IRModule({**kernels, "c": one.with_attr("tvm_edge.grid", True)}))
    assert not isinstance(apart["c"].body, tirx.Evaluate)
    # Nothing renames variables behind a merged launch: each is one of its members' alone.
    on_gpu = element_wise(0, 6, 5).scheduled(MALI)
    gpu = resolve_target("mali-t860").target
    func = with_merged_launches(compose([on_gpu, on_gpu, on_gpu]), gpu)
    assert merged_launches(func) == ((0, 1, 2),) and tvm.tirx.analysis.verify_ssa(func)


@pytest.mark.parametrize("seed", [3, *in_full(0, 1, 2, *range(4, 12))])
def test_any_members_on_a_cpu(seed: int, host: ResolvedTarget) -> None:
    check(some(seed), host)


def test_parallel_loops_are_merged(host: ResolvedTarget) -> None:
    check(list(LARGE), host)
    funcs = [member.scheduled(host.spec) for member in LARGE]
    lowered = with_merged_launches(compose(funcs), host.target)
    assert sum(parallel_loops(func) for func in funcs) > len(funcs)
    launches = merged_launches(lowered)
    assert launches[0] == (0, 1, 2)
    assert parallel_loops(lowered) == len(launches) < len(funcs)


def test_members_without_parallel_loops_stay_in_sequence(host: ResolvedTarget) -> None:
    small = [element_wise(0, 3, 5), element_wise(1, 7)]
    check([*small, LARGE[0]], host)
    funcs = [member.scheduled(host.spec) for member in (*small, *LARGE[:2])]
    assert {2, 3} in [
        set(n) for n in merged_launches(with_merged_launches(compose(funcs), host.target))
    ]


def test_tasks_are_dealt_out_evenly(host: ResolvedTarget) -> None:
    """Half of the tasks are half of each member's, whatever the order of members."""

    def marking(count: int, value: int) -> tirx.PrimFunc:
        placed = tirx.decl_buffer([count], "int32", "placed", layout=None)
        i = tirx.Var("i", "int32")
        body = tirx.BufferStore(placed, tirx.const(value, "int32"), [i])
        zero = tirx.const(0, "int32")
        loop = tirx.For(i, zero, tirx.const(count, "int32"), tirx.ForKind.PARALLEL, body)
        return tirx.PrimFunc([placed], loop)

    funcs = [marking(7, 1), marking(100, 2), marking(33, 3)]
    results = run(compose(funcs), [], host)
    for value, (result, func) in enumerate(zip(results, funcs, strict=True), 1):
        assert result.tolist() == [value] * int(func.params[0].shape[0])
    lowered = with_merged_launches(compose(funcs), host.target)
    assert merged_launches(lowered) == ((0, 1, 2),)


def test_launches_go_to_the_stages_that_are_asked_for(host: ResolvedTarget) -> None:
    funcs = [LARGE[0].scheduled(host.spec), LARGE[2].scheduled(host.spec)]
    later = compose(funcs, [[0], [1]])
    launches = merged_launches(with_merged_launches(later, host.target))
    assert launches[:2] == ((0,), (1,))
    inputs = [*LARGE[0].inputs, *LARGE[2].inputs]
    for apart, together in zip(
        run(later, inputs, host), run(compose(funcs), inputs, host), strict=True
    ):
        np.testing.assert_array_equal(apart, together)


# ------------------------------------------------------------------------------------- what is not


def symbolic() -> tirx.PrimFunc:
    n = tirx.Var("n", "int64")
    given = te.placeholder((n, 4), "float32")
    return te.create_prim_func([given, te.compute((n, 4), lambda i, j: given[i, j] + 1)])


def test_what_cannot_be_composed() -> None:
    one = element_wise(0, 6, 5)
    func = one.scheduled(MALI)
    assert can_compose([func, func]) == ""
    assert "fewer than two" in can_compose([func])
    assert "kernel 1 is composed" in can_compose([func, compose([func, func])])
    assert "kernel 1 has a symbolic shape" in can_compose([func, symbolic()])
    on_gpu, on_cpu = (func.with_attr("target", tvm.target.Target(k)) for k in ("opencl", "llvm"))
    assert "different devices" in can_compose([on_gpu, on_cpu])
    eight, sixteen = pinned(one, 8, MALI), pinned(one, 16, MALI)
    assert can_compose([eight, eight, func]) == ""
    assert "sub-groups of 8 and of 16" in can_compose([eight, sixteen])
    most = MOST_ARGUMENTS // len(func.params)
    assert can_compose([func] * most) == ""
    assert f"takes {MOST_ARGUMENTS}" in can_compose([func] * (most + 1))
    textured = tirx.decl_buffer([4], "float32", "image", scope="global.texture")
    other = tirx.PrimFunc([textured], tirx.Evaluate(tirx.const(0, "int32")))
    assert "image of kernel 0 is in global.texture memory" in can_compose([other, func])
    number = tirx.PrimFunc([tirx.Var("n", "int32")], tirx.Evaluate(tirx.const(0, "int32")))
    assert "parameter n of kernel 1 is no tensor" in can_compose([func, number])


def test_errors_say_why() -> None:
    func = element_wise(0, 6, 5).scheduled(MALI)
    with pytest.raises(ValueError, match="cannot be composed: there are fewer"):
        compose([func])
    with pytest.raises(ValueError, match="2 members with 1 stages"):
        compose([func, func], [[0]])
    with pytest.raises(ValueError, match="2 members with 2 stages and 3 outputs"):
        compose([func, func], outputs=[1, 1, 1])
    with pytest.raises(ValueError, match="1 results of members with 2 outputs"):
        compose([func, func], results=[0])
    with pytest.raises(ValueError, match="do not ascend"):
        compose([func, func], [[0, 0], [1]])


def test_it_says_what_it_is() -> None:
    func = element_wise(0, 6, 5).scheduled(MALI)
    made = compose([func.with_attr("tirx.noalias", True), func.with_attr("tirx.noalias", False)])
    assert "tirx.noalias" not in made.attrs and "global_symbol" not in made.attrs
    assert made.attrs["op_pattern"] == 8 and made.attrs["tirx.is_scheduled"]
    assert [list(own) for own in made.attrs[PARALLEL]] == [[], []]
