"""Storage is shared by what is never alive together, on one device, and is no larger than TVM's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.compiler.reduced_networks import REDUCED
from tests.marks import in_full
from tvm_edge import zoo
from tvm_edge.compiler.compilation import begin
from tvm_edge.compiler.options import Options
from tvm_edge.compiler.pipeline import PIPELINE
from tvm_edge.relay_passes.ir.expressions import is_call
from tvm_edge.relay_passes.memory.plan_memory import PlanMemory
from tvm_edge.relay_passes.memory.shared_storage import Storage

transform = relax.transform
KERNEL = relax.ExternFunc("kernel")  # writes its last argument
NOTHING = relax.TupleType([])
ANYTHING = relax.TensorType(ndim=-1, dtype="float32")


class Writer:
    """``main`` of one parameter as ``CallTIRRewrite`` leaves it, line by line."""

    def __init__(self) -> None:
        self.x = relax.Var("x", relax.TensorType((16,), "float32"))
        self.n = relax.Var("n", relax.TensorType((tvm.tirx.Var("n", "int64"),), "float32"))
        self._builder = relax.BlockBuilder()
        self._bindings: list[relax.Binding] = []

    def let(self, value: relax.Expr) -> relax.Var:
        value = self._builder.normalize(value)
        var = relax.Var(f"v{len(self._bindings)}", value.ty)
        self._bindings.append(relax.VarBinding(var, value))
        return var

    def cast(self, tensor: relax.Var) -> relax.Var:
        var = relax.Var(f"v{len(self._bindings)}", tensor.ty)
        self._bindings.append(relax.MatchCast(var, tensor, tensor.ty))
        return var

    def alloc(self, *shape: Any, device: int = 0, dtype: str = "float32") -> relax.Var:
        return self.let(relax.op.builtin.alloc_tensor(relax.ShapeExpr(shape), dtype, device))

    def kernel(self, *args: relax.Expr) -> None:
        self.let(relax.Call(KERNEL, args, ty_args=[NOTHING]))

    def layer(self, *sources: relax.Expr, size: Any = 16, **where: Any) -> relax.Var:
        result = self.alloc(size, **where)
        self.kernel(*sources, result)
        return result

    def view(self, tensor: relax.Var) -> relax.Var:
        return self.let(relax.op.reshape(tensor, (-1, 1)))

    def choice(self, then: relax.Expr, other: relax.Expr) -> relax.Var:
        """An If without bindings in its branches."""
        condition = relax.const(np.bool_(True))
        branches = [relax.SeqExpr([], each) for each in (then, other)]
        for branch in branches:
            relax.expr._update_type(branch, branch.body.ty)
        return self.let(relax.If(condition, *branches))

    def module(self, result: relax.Expr) -> tvm.IRModule:
        result = self._builder.normalize(result)
        body = relax.SeqExpr([relax.BindingBlock(self._bindings)], result)
        relax.expr._update_type(body, result.ty)
        main = relax.Function([self.x, self.n], body, result.ty, is_pure=False)
        return tvm.IRModule({"main": main})

    def homes(
        self, result: relax.Expr, tensors: Sequence[relax.Var], devices: Sequence[int] = (0, 1)
    ) -> list[int | None]:
        """Numbers of some tensors' storages; ``None`` for one that keeps its own allocation."""
        made = bound(PlanMemory(devices)(self.module(result)))
        values = [made[tensor] for tensor in tensors]
        numbers: dict[relax.Var, int] = {}
        return [
            numbers.setdefault(value.args[0], len(numbers))
            if is_call(value, "relax.memory.alloc_tensor")
            else None
            for value in values
        ]


def bound(mod: tvm.IRModule) -> dict[relax.Var, relax.Expr]:
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    return {binding.var: binding.value for binding in bindings}


def storages(mod: tvm.IRModule) -> list[tuple[int, int]]:
    """Bytes and device of each."""
    return [
        (int(value.args[0].values[0]), int(value.args[1].value))
        for value in bound(mod).values()
        if is_call(value, "relax.memory.alloc_storage")
    ]


# --------------------------------------------------------------------------------- who shares


def test_lives_that_do_not_overlap_share() -> None:
    """In the words of TVM's planner, which ``RewriteCUDAGraph`` and the virtual machine know."""
    w = Writer()
    a = w.layer(w.x)
    b = w.layer(a)
    c = w.layer(b)
    mod = w.module(w.layer(c))
    assert w.homes(w.x, [a, b, c]) == [0, 1, 0]
    expected = transform.StaticPlanBlockMemory()(mod)
    assert storages(expected) == [(64, 0)] * 2
    tvm.ir.assert_structural_equal(PlanMemory([0])(mod)["main"], expected["main"])


def test_lives_that_overlap_do_not_share() -> None:
    w = Writer()
    a = w.layer(w.x)
    b = w.layer(w.x)
    c = w.layer(a)
    d = w.layer(b, c)
    assert w.homes(w.layer(d), [a, b, c, d]) == [0, 1, 2, 0]


def test_storage_is_as_large_as_its_largest_tensor() -> None:
    """Whatever their types; and only as large."""
    w = Writer()
    a = w.layer(w.x, size=4, dtype="int64")
    b = w.layer(a, size=100, dtype="int8")
    c = w.layer(b, size=20, dtype="float16")
    mod = w.module(w.layer(c))
    assert storages(PlanMemory([0])(mod)) == [(40, 0), (100, 0)]


def test_devices_never_share() -> None:
    w = Writer()
    devices = [0, 0, 1, 1, 0, 1]
    chain = [w.x]
    for device in devices:
        chain.append(w.layer(chain[-1], device=device))
    del chain[0]
    result = w.layer(chain[-1])
    assert w.homes(result, chain) == [0, 1, 2, 3, 0, 2]
    planned = PlanMemory([0, 1])(w.module(result))
    assert sorted(storages(planned)) == [(64, 0)] * 2 + [(64, 1)] * 2
    made = bound(planned)
    assert [int(made[tensor].args[4].value) for tensor in chain] == devices


@pytest.mark.parametrize(
    ("lives", "total"),
    [
        ([(1, 2, 4), (1, 3, 4), (3, 5, 2), (5, 6, 4)], 8),
        ([(0, 1, 4), (1, 3, 8), (2, 4, 2), (4, 6, 2), (6, 6, 4)], 12),
    ],
    ids=["the storage that has waited the least", "the smallest storage"],
)
def test_the_better_of_two_ways(lives: list[tuple[int, int, int]], total: int) -> None:
    """Tensors by the times of their first and last use, and their elements."""
    w = Writer()
    made: dict[int, relax.Var] = {}
    for now in range(7):
        for index, (first, _, size) in enumerate(lives):
            if first == now:
                made[index] = w.layer(w.x, size=size)
        w.kernel(*(made[index] for index, (_, last, _) in enumerate(lives) if last == now), w.x)
    assert sum(nbytes for nbytes, _ in storages(PlanMemory([0])(w.module(w.x)))) == 4 * total


def test_a_device_at_a_time() -> None:
    w = Writer()
    a = w.layer(w.x)
    b = w.layer(a, device=1)
    mod = w.module(w.layer(b))
    assert storages(PlanMemory([0])(mod)) == [(64, 0)]
    assert w.homes(w.x, [a, b], [1])[0] is None
    both = PlanMemory([1])(PlanMemory([0])(mod))
    tvm.ir.assert_structural_equal(both["main"], PlanMemory([0, 1])(mod)["main"])


# ------------------------------------------------------------------------- how long they live


def read_late(kept: str) -> list[int | None]:
    """Storages of a tensor that something else stands for, and of one made before that is read."""
    w = Writer()
    a = w.layer(w.x)
    other = w.layer(w.x, size=4)
    match kept:
        case "view":
            late = w.view(a)
        case "view of a view":
            late = w.view(w.view(a))
        case "name":
            late = w.let(a)
        case "cast":
            late = w.cast(a)
        case "tuple":
            late = w.let(relax.Tuple([other, a]))
        case "item":
            late = w.let(relax.TupleGetItem(w.let(relax.Tuple([other, a])), 1))
        case "nested":
            inside = w.let(relax.TupleGetItem(w.let(relax.Tuple([relax.Tuple([a])])), 0))
            late = w.let(relax.TupleGetItem(inside, 0))
        case "unknown":
            late = w.let(relax.Call(relax.ExternFunc("f"), [a], ty_args=[ANYTHING]))
        case "object":
            late = w.let(relax.Call(relax.ExternFunc("f"), [a], ty_args=[relax.AnyType()]))
        case "branch":
            late = w.choice(a, w.x)
        case "dead":
            w.view(a)
            late = w.x
        case "shape":
            late = w.let(relax.Call(relax.ExternFunc("f"), [a], ty_args=[relax.ShapeType(ndim=2)]))
    b = w.layer(w.x)
    return w.homes(w.layer(b, late), [a, b])


@pytest.mark.parametrize(
    "kept",
    (
        *("view", "view of a view", "name", "cast", "tuple", "item", "nested"),
        *("unknown", "object", "branch"),
    ),
)
def test_what_is_read_by_another_name_keeps_its_storage(kept: str) -> None:
    assert read_late(kept) == [0, 1]


@pytest.mark.parametrize("kept", ["dead", "shape"])
def test_what_is_not_read_again_does_not(kept: str) -> None:
    assert read_late(kept) == [0, 0]


def test_a_field_that_is_not_read_again_does_not() -> None:
    """A kernel's workspace lies in a tuple beside its result."""
    w = Writer()
    a, workspace = w.alloc(16), w.alloc(32)
    w.kernel(w.x, a, workspace)
    pair = w.let(relax.Tuple([a, workspace]))
    kept = w.let(relax.TupleGetItem(pair, 0))
    b = w.layer(w.x, size=32)
    late = w.let(relax.TupleGetItem(pair, 0))
    assert w.homes(w.layer(kept, late, b), [workspace, b]) == [0, 0]


def test_results_are_left_alone() -> None:
    w = Writer()
    a = w.layer(w.x)
    b = w.layer(a)
    c = w.layer(b)
    d = w.layer(c)
    e = w.layer(d)
    pair = w.let(relax.Tuple([w.view(a), d]))
    homes = w.homes(relax.Tuple([pair, w.choice(e, w.x)]), [a, b, c, d, e])
    assert [home is None for home in homes] == [True, False, False, True, True]


def test_shapes_that_are_not_known_are_left_alone() -> None:
    w = Writer()
    a = w.layer(w.n, size=w.n.ty.shape.values[0])
    b = w.layer(a)
    assert [home is None for home in w.homes(w.layer(b), [a, b])] == [True, False]


def test_a_function_without_tensors() -> None:
    w = Writer()
    mod = w.module(w.x)
    tvm.ir.assert_structural_equal(PlanMemory([0])(mod)["main"], mod["main"])


# -------------------------------------------------------------------------------- any program


class Memory:
    """A tensor, or a view of it: what it was last given, and where."""

    def __init__(self, storage: dict[str, int], device: int, nbytes: int) -> None:
        assert storage["device"] == device and storage["nbytes"] >= nbytes
        self.storage, self.nbytes, self.planned = storage, nbytes, "planned" in storage
        self.stamp = self.first = self.last = -1


def execute(mod: tvm.IRModule, parameters: Sequence[relax.Var]) -> list[Memory]:
    """Run ``main`` on stamps: each kernel leaves its own, and finds those it expects.

    The planned tensors are returned, with the lines of the first writer and the last reader.
    """
    env: dict[relax.Var, Any] = {}
    everything: list[Memory] = []
    for var in parameters:
        env[var] = Memory({"device": 0, "nbytes": 0, "stamp": -1}, 0, 0)

    def value_of(expr: relax.Expr) -> Any:
        if isinstance(expr, relax.Var):
            return env[expr]
        if isinstance(expr, relax.Tuple):
            return [value_of(each) for each in expr.fields]
        return value_of(expr.tuple_value)[expr.index]

    def check(value: Any, line: int) -> None:
        if isinstance(value, list):
            for each in value:
                check(each, line)
        else:
            assert value.storage["stamp"] == value.stamp, f"line {line} reads what another wrote"
            value.last = line

    for line, (var, value) in enumerate(bound(mod).items()):
        if is_call(value, "relax.memory.alloc_storage"):
            size, device = int(value.args[0].values[0]), int(value.args[1].value)
            env[var] = {"device": device, "nbytes": size, "stamp": -1, "planned": 1}
        elif is_call(value, "relax.memory.alloc_tensor", "relax.builtin.alloc_tensor"):
            nbytes = 4 * math.prod(int(d) for d in var.ty.shape.values)
            if value.op.name == "relax.memory.alloc_tensor":
                storage, device = env[value.args[0]], int(value.args[4].value)
            else:
                device = int(value.args[2].value)
                storage = {"device": device, "nbytes": nbytes, "stamp": -1}
            env[var] = Memory(storage, device, nbytes)
            everything.append(env[var])
        elif is_call(value, "relax.reshape"):
            env[var] = env[value.args[0]]
        elif isinstance(value, relax.Call):
            *sources, target = map(value_of, value.args)
            check(sources, line)
            target.storage["stamp"] = target.stamp = target.first = target.last = line
        else:
            env[var] = value_of(value)
    check(value_of(mod["main"].body.body), 1 << 30)
    return [each for each in everything if each.planned]


@st.composite
def programs(draw: st.DrawFn) -> tuple[Writer, tvm.IRModule]:
    """Kernels of one to three operands, views, tuples and names; a few results."""
    w = Writer()
    tensors, tuples = [w.x], []
    for _ in range(draw(st.integers(1, 25))):
        some = st.lists(st.sampled_from(tensors[-6:]), min_size=1, max_size=3)
        match draw(st.sampled_from(["layer"] * 5 + ["view", "name", "tuple", "item"])):
            case "layer":
                size = draw(st.sampled_from([1, 2, 3, 8, 20]))
                tensors.append(w.layer(*draw(some), size=size, device=draw(st.integers(0, 1))))
            case "view":
                tensors.append(w.view(draw(some)[0]))
            case "name":
                tensors.append(w.let(draw(some)[0]))
            case "tuple":
                tuples.append(w.let(relax.Tuple(draw(some))))
            case "item" if tuples:
                whole = draw(st.sampled_from(tuples))
                index = draw(st.integers(0, len(whole.ty.fields) - 1))
                tensors.append(w.let(relax.TupleGetItem(whole, index)))
    results = draw(st.lists(st.sampled_from([*tensors[-4:], *tuples[-1:]]), min_size=1))
    return w, w.module(relax.Tuple(results))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(programs())
def test_no_tensor_is_overwritten_while_it_is_read(made: tuple[Writer, tvm.IRModule]) -> None:
    w, mod = made
    planned = PlanMemory([0, 1])(mod)
    tensors = execute(planned, [w.x, w.n])
    for device in (0, 1):
        here = [t for t in tensors if t.storage["device"] == device]
        total = sum(nbytes for nbytes, where in storages(planned) if where == device)
        alive = [sum(t.nbytes for t in here if t.first <= s.first <= t.last) for s in here]
        assert max(alive, default=0) <= total <= sum(t.nbytes for t in here)


def test_that_the_check_finds_an_overwritten_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Writer()
    mod = w.module(w.layer(w.layer(w.x), w.layer(w.x)))
    monkeypatch.setattr(Storage, "takes", lambda *_: True)
    with pytest.raises(AssertionError, match="reads what another wrote"):
        execute(PlanMemory([0])(mod), [w.x, w.n])


# ------------------------------------------------------------------------------ whole networks


def rewritten(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> tvm.IRModule:
    """A network as planners find it."""
    model = zoo.build(name, **REDUCED[name])
    begun = begin(model, target, Options(fallback="none", tuning_logs=None))
    return PIPELINE.part(until="PlanMemory").run(begun).module


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("mobilenet_v2", "llvm"),
        ("squeezenet1_0", "mali-t860"),
        *in_full(("shufflenet_v2", "mali-t860"), ("densenet121", "mali-t860")),
    ],
)
def test_not_more_than_tvm_takes(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mod = rewritten(name, target, monkeypatch)
    ours, tvms = (
        sum(nbytes for nbytes, _ in storages(planner(mod)))
        for planner in (PlanMemory([0]), transform.StaticPlanBlockMemory())
    )
    assert 0 < ours <= 1.02 * tvms
