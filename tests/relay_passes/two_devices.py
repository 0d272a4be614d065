"""Programs of kernels on a GPU and the CPU, and what they compute when the GPU is slow or fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tvm
from hypothesis import strategies as st
from tvm import relax
from tvm.target import Target

from tests.compiler.steps import between
from tvm_edge.hardware import resolve_target
from tvm_edge.relay_passes.ir.copy_functions import (
    COPY,
    FINISH_READ,
    FINISH_WRITE,
    HAND_OVER,
    READ,
    START_READ,
    START_WRITE,
    WRITE,
)
from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, is_call

GPU, CPU = 0, 1
SHARED = ("read", "write")
DEVICES = [relax.VDevice(Target("opencl"), 0, "global"), relax.VDevice(Target("llvm"), 0, "global")]


class Program:
    """``main`` of a parameter on each device, whose operators are kernels already."""

    def __init__(self) -> None:
        self.inputs = [relax.Var(f"x{d}", self.type(16, d)) for d in (GPU, CPU)]
        self.x, self.c = self.inputs
        self._builder = relax.BlockBuilder()
        self._bindings: list[relax.Binding] = []
        self.crossed: list[relax.Var] = []

    @staticmethod
    def type(size: Any, device: int) -> relax.TensorType:
        return relax.TensorType((size,), "float32", DEVICES[device])

    def let(self, value: relax.Expr) -> relax.Var:
        value = self._builder.normalize(value)
        var = relax.DataflowVar(f"v{len(self._bindings)}", value.ty)
        self._bindings.append(relax.VarBinding(var, value))
        return var

    def _name(self, device: int, *written: int, over: bool = False) -> tvm.ir.GlobalVar:
        """Name a kernel by device, whether it works in place, number and written arguments."""
        places = "_".join(map(str, written))
        first = "gc"[device] + "i" * over
        name = tvm.ir.GlobalVar(f"{first}{len(self._bindings)}_{places}")
        relax.expr._update_type(name, relax.FuncType.opaque_func())
        return name

    def kernel(self, device: int, *args: relax.Expr, sizes: Sequence[Any] = (16,)) -> relax.Var:
        name = self._name(device, *range(len(args), len(args) + len(sizes)))
        types = [self.type(size, device) for size in sizes]
        return self.let(
            relax.call_tir(name, relax.Tuple(args), types if len(types) > 1 else types[0])
        )

    def over(self, *args: relax.Var) -> relax.Var:
        """A kernel that overwrites the last of its arguments."""
        place = len(args) - 1
        name = self._name(device_of(args[-1]), place, over=True)
        call = relax.op.call_tir_inplace(name, relax.Tuple(args), place, args[-1].ty)
        return self.let(call)

    def item(self, whole: relax.Var, index: int) -> relax.Var:
        return self.let(relax.TupleGetItem(whole, index))

    def view(self, tensor: relax.Var) -> relax.Var:
        return self.let(relax.op.reshape(tensor, (4, 4) if tensor.ty.ndim == 1 else (16,)))

    def cross(self, tensor: relax.Expr) -> relax.Var:
        device = DEVICES[1 - device_of(tensor)]
        self.crossed.append(self.let(relax.op.to_vdevice(tensor, device)))
        return self.crossed[-1]

    def module(self, *results: relax.Var) -> tvm.IRModule:
        result = relax.Var("result", relax.TupleType([each.ty for each in results]))
        outputs = relax.VarBinding(result, self._builder.normalize(relax.Tuple(results)))
        block = relax.DataflowBlock([*self._bindings, outputs])
        body = relax.SeqExpr([block], result)
        relax.expr._update_type(body, result.ty)
        main = relax.Function(self.inputs, body, result.ty, is_pure=True)
        main = main.with_attr("global_symbol", "main")
        return tvm.IRModule({"main": main}, global_infos={"vdevice": DEVICES})


def device_of(tensor: relax.Expr) -> int:
    return [device.target.kind.name for device in DEVICES].index(tensor.ty.vdevice.target.kind.name)


def lowered(mod: tvm.IRModule, shared: bool = True) -> tvm.IRModule:
    """With planned storage, before there are instructions."""
    resolved = resolve_target("mali-t860", "llvm")
    spec = replace(resolved.spec, unified_memory=shared, fine_grained_memory=shared)
    resolved = replace(resolved, spec=spec)
    kinds = [str(device.target.kind.name) for device in DEVICES]
    return between(mod, "MarkMade", "LowerAllocTensor", resolved, kinds=kinds)


def lines(mod: tvm.IRModule) -> list[tuple[relax.Var, relax.Expr]]:
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    return [(binding.var, binding.value) for binding in bindings]


def called(value: relax.Expr) -> str:
    """The name of the kernel or the function that an expression calls."""
    op = getattr(value, "op", None)
    if isinstance(op, relax.ExternFunc):
        return str(op.global_symbol)
    return str(op.name_hint) if isinstance(op, tvm.ir.GlobalVar) else ""


def names(mod: tvm.IRModule) -> list[str]:
    """Return the names of the callees, kernels without their number."""
    found = filter(None, (called(value) for _, value in lines(mod)))
    return [name[0] if name[0] in "gc" else name for name in found]


class Cell:
    """Memory, and what was last written there."""

    value: Any = "nothing"


def pure(mod: tvm.IRModule) -> list[Any]:
    """The results of ``main`` before it is lowered, where every value is a tensor of its own."""
    env: dict[relax.Var, Any] = {param: param.name for param in mod["main"].params}

    def value_of(expr: relax.Expr) -> Any:
        if isinstance(expr, relax.Var):
            return env[expr]
        return [value_of(each) for each in expr.fields]

    for var, value in lines(mod):
        if is_call(value, *KERNEL_CALLS):
            name, args = str(value.args[0].name_hint), value_of(value.args[1])
            places = [int(place) for place in name.split("_")[1:]]
            results = [hash((name, place, *args)) for place in places]
            env[var] = results if len(results) > 1 else results[0]
        elif isinstance(value, relax.TupleGetItem):
            env[var] = env[value.tuple_value][value.index]
        elif is_call(value, "relax.to_vdevice", "relax.reshape"):
            env[var] = value_of(value.args[0])
        else:
            env[var] = value_of(value)
    return env[mod["main"].body.body]


class Queue:
    """Queue of a GPU, which works at once or when it is waited for."""

    def __init__(self, fast: bool) -> None:
        self._fast = fast
        self._left: list[Callable[[], None]] = []
        self._done = 0

    def put(self, work: Callable[[], None]) -> None:
        self._left.append(work)
        if self._fast:
            self.wait()

    @property
    def place(self) -> int:
        return self._done + len(self._left)

    def wait(self, place: int | None = None) -> None:
        """Until what was put before a place is done."""
        while self._left and (place is None or self._done < place):
            self._left.pop(0)()
            self._done += 1


def execute(mod: tvm.IRModule, kind: str, fast: bool = False) -> list[Any]:
    """The results of ``main`` as lowered, on a GPU that is never as far as the host hopes.

    With ``fine`` memory the host reads and writes where the GPU does, with ``mapped`` it only
    reads; with memory of its ``own`` neither: what is read later is copied in the GPU's order, or,
    by ``cuda``, when it is needed.
    """
    queue = Queue(fast)
    found = call(mod, [named(param.name) for param in mod["main"].params], kind, queue)
    queue.wait()
    return values(found)


def named(name: str) -> Cell:
    """Memory with an input."""
    cell = Cell()
    cell.value = name
    return cell


def values(held: Any) -> Any:
    """Return the values in memory, or in tuples of it."""
    return [values(each) for each in held] if isinstance(held, list) else held.value


def call(mod: tvm.IRModule, args: Sequence[Any], kind: str, queue: Queue) -> Any:
    """Interpret ``main`` and return its result, whose values may come with a wait for the queue."""
    env: dict[relax.Var, Any] = dict(zip(mod["main"].params, args, strict=True))

    def value_of(expr: relax.Expr) -> Any:
        if isinstance(expr, relax.Var):
            return env[expr]
        if isinstance(expr, relax.TupleGetItem):
            return value_of(expr.tuple_value)[expr.index]
        return [value_of(each) for each in expr.fields]

    def move(source: Cell, target: Cell) -> None:
        target.value = source.value

    def copy(source: Cell, target: Cell) -> Cell:
        queue.wait()
        move(source, target)
        return target

    def start_read(tensor: Cell) -> tuple[Cell, Cell, int]:
        seen = tensor if kind in ("fine", "mapped") else Cell()
        if kind == "own":
            queue.put(lambda: move(tensor, seen))
        return tensor, seen, queue.place

    def finish_read(tensor: Cell, seen: Cell, place: int) -> Cell:
        queue.wait(place)
        if kind == "cuda":
            move(tensor, seen)
        return seen

    def launch(name: str, args: Sequence[Cell]) -> None:
        places = [int(place) for place in name.split("_")[1:]]
        values = [cell.value for cell in (args if name[1] == "i" else args[: places[0]])]
        for place in places:
            args[place].value = hash((name, place, *values))

    def started(tensor: Cell) -> tuple[Cell, int]:
        return tensor, queue.place

    def writable(tensor: Cell, place: int | None) -> Cell:
        queue.wait(place)
        return tensor if kind == "fine" else Cell()

    for var, value in lines(mod):
        name = called(value)
        args = [value_of(each) for each in value.args] if name else []
        if is_call(value, "relax.memory.alloc_storage", "relax.builtin.alloc_tensor"):
            env[var] = Cell()
        elif is_call(value, "relax.memory.alloc_tensor", "relax.reshape"):
            env[var] = env[value.args[0]]
        elif name == COPY:
            copy(*args)
        elif name == READ:
            queue.wait()
            env[var] = args[0] if kind in ("fine", "mapped") else copy(args[0], Cell())
        elif name == START_READ:
            env[var] = start_read(*args)
        elif name == FINISH_READ:
            env[var] = finish_read(*args[0])
        elif name == START_WRITE:
            env[var] = started(*args)
        elif name == FINISH_WRITE:
            env[var] = writable(*args[0])
        elif name == WRITE:
            env[var] = writable(args[0], None)
        elif name == HAND_OVER:
            if args[0] is not args[1]:
                copy(*args)
        elif name.startswith("g"):
            queue.put(lambda name=name, args=args: launch(name, args))
        elif name:
            launch(name, args)
        else:
            env[var] = value_of(value)
    return value_of(mod["main"].body.body)


def assert_right(mod: tvm.IRModule, shared: bool = True) -> tvm.IRModule:
    """Assert that lowering keeps a program's results, for each kind of memory and queue."""
    found = lowered(mod, shared)
    for kind in ("fine", "mapped", "own") if shared else ("own", "cuda"):
        for fast in (False, True):
            assert execute(found, kind, fast) == pure(mod), (kind, fast)
    return found


@st.composite
def programs(draw: st.DrawFn, in_place: bool = True) -> tvm.IRModule:
    """Kernels of one to three operands, some in place, views, fields and copies; some results.

    What was overwritten, by whatever name, is not read again; what crossed before is.
    """
    p = Program()
    tensors: list[relax.Var] = list(p.inputs)
    same: dict[relax.Var, relax.Var] = {}  # by a view what it is a view of
    fresh: set[relax.Var] = set()

    def origin(tensor: relax.Var) -> relax.Var:
        while tensor in same:
            tensor = same[tensor]
        return tensor

    for _ in range(draw(st.integers(1, 25))):
        kinds = ["kernel"] * 4 + ["cross"] * 3 + ["view", "pair"] + ["over"] * in_place
        what = draw(st.sampled_from(kinds))
        one = draw(st.sampled_from(tensors[-8:]))
        here = [each for each in tensors[-8:] if device_of(each) == device_of(one)]
        some = draw(st.lists(st.sampled_from(here), min_size=1, max_size=3))
        match what:
            case "kernel":
                tensors.append(p.kernel(device_of(one), *some))
                fresh.add(tensors[-1])
            case "pair":
                pair = p.kernel(device_of(one), *some, sizes=(16, 16))
                tensors += [p.item(pair, 0), p.item(pair, 1)]
                fresh.update(tensors[-2:])
            case "view":
                tensors.append(p.view(one))
                same[tensors[-1]] = one
            case "cross":
                tensors.append(p.cross(one))
            case "over" if origin(one) in fresh or one in p.crossed:
                gone = [each for each in tensors if origin(each) == origin(one)]
                tensors = [each for each in tensors if each not in gone]
                others = [each for each in some if each not in gone]
                tensors.append(p.over(*others, one))
                fresh.add(tensors[-1])
    some = draw(st.lists(st.sampled_from(tensors[-6:]), min_size=1, max_size=3, unique=True))
    return p.module(*some)


def without_copies(mod: tvm.IRModule) -> tvm.IRModule:
    """Each copy replaced by what it copies."""

    @relax.expr_functor.mutator
    class Forget(relax.expr_functor.PyExprMutator):
        def visit_call_(self, op: relax.Call) -> relax.Expr:
            op = super().visit_call_(op)
            is_copy = isinstance(op.op, tvm.ir.Op) and op.op.name == "relax.to_vdevice"
            return op.args[0] if is_copy else op

    mod = mod.clone()
    mod["main"] = Forget(mod).visit_expr(mod["main"])
    return mod
