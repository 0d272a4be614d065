"""Kernels written out loop by loop, with TVM's IR builder.

Sorts and scans are cooperating loops and not definitions that a schedule could be applied to. In
plain Python a sorting network or a merge is a function that writes statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.workgroup import group_size

__all__ = [
    "Kernel",
    "Tensor",
    "barrier",
    "each",
    "either",
    "function",
    "hold",
    "in_pieces",
    "int32",
    "int64",
    "launch",
    "launch_grid",
    "register",
    "registers",
    "require",
    "spread",
    "when",
]

_launching: ContextVar[bool] = ContextVar("launching", default=False)

# Relax's OpPatternKind: not to be fused with anything.
_OPAQUE = 8

# Elements that one core is through with before another has woken up.
_MIN_TO_SPREAD = 1 << 12

Tensor = tuple[Sequence[Any], str]
"""Shape and element type of a parameter; indexed by one number it is flat."""


@dataclass(frozen=True)
class Kernel:
    """A function and its parameters."""

    func: tirx.PrimFunc
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def function(
    inputs: Sequence[Tensor | tirx.Var], outputs: Sequence[Tensor], body: Callable[..., None]
) -> Kernel:
    """A kernel that keeps the loops it was written with.

    Parameters
    ----------
    inputs, outputs : sequence of Tensor
        The parameters, outputs after inputs. The initial value of an output is not defined.
        Further outputs that nobody reads are the kernel's workspace, which the memory planner
        then knows. A variable among the inputs is a length that is passed by value.
    body : callable
        Writes the statements; called with a buffer for each tensor.
    """
    tensors = [each for each in inputs if isinstance(each, tuple)]

    def write(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        with IRBuilder() as builder:
            with T.attr(tirx.IntImm("int32", 0), "kernel", tirx.IntImm("int32", 0)):
                body(*(T.buffer_proxy(buffer) for buffer in (*ins, *outs)))
            return builder.get().body  # the builder wants one frame around all statements

    # TVM wants the very same expressions in a tensor and in its buffer.
    given = [
        te.placeholder([*map(_expression, shape)], dtype, f"in{i}")
        for i, (shape, dtype) in enumerate(tensors)
    ]
    shapes = [[*map(_expression, shape)] for shape, _ in outputs]
    made = te.extern(
        shapes,
        given,
        write,
        name="kernel",
        dtype=[dtype for _, dtype in outputs],
        in_buffers=[
            tirx.decl_buffer(tensor.shape, tensor.dtype, tensor.op.name, layout=None)
            for tensor in given
        ],
        out_buffers=[
            tirx.decl_buffer(shape, dtype, f"out{i}", layout=None)
            for i, (shape, (_, dtype)) in enumerate(zip(shapes, outputs, strict=True))
        ],
    )
    results = [made] if isinstance(made, te.Tensor) else list(made)
    left = iter(given)
    params = [next(left) if isinstance(each, tuple) else each for each in inputs]
    func = te.create_prim_func([*params, *results])
    attrs = {"tirx.is_scheduled": True, "op_pattern": _OPAQUE}
    return Kernel(func.with_attrs(attrs), tuple(tensors), tuple(outputs))


def _expression(size: Any) -> tirx.Expr:
    return tirx.IntImm("int64", size) if isinstance(size, int) else size


@contextmanager
def launch(groups: Any, items: int) -> Iterator[tuple[tirx.Expr, tirx.Expr]]:
    """One GPU kernel: yields the indices of the work-group and of the work-item in it."""
    with launch_grid([groups], [items]) as ((group,), (item,)):
        yield group, item


@contextmanager
def launch_grid(
    groups: Sequence[Any], items: Sequence[Any]
) -> Iterator[tuple[list[tirx.Expr], list[tirx.Expr]]]:
    """One GPU kernel of one to three axes, x first: indices of work-group and of work-item."""
    blocks = [te.thread_axis(f"blockIdx.{axis}") for axis, _ in zip("xyz", groups, strict=False)]
    threads = [te.thread_axis(f"threadIdx.{axis}") for axis, _ in zip("xyz", items, strict=False)]
    outside = _launching.set(True)
    try:
        with ExitStack() as stack:
            for axis, extent in zip([*blocks, *threads], [*groups, *items], strict=True):
                stack.enter_context(T.attr(axis, "thread_extent", extent))
            yield [axis.var for axis in blocks], [axis.var for axis in threads]
    finally:
        _launching.reset(outside)


def require(condition: tirx.Expr, what: str) -> None:
    """Refuse to run where `condition` does not hold; the runtime makes it an InputError."""
    with T.Assert(condition, f"the inputs' values do not fit: {what}"):
        pass


def barrier() -> None:
    """All work-items of a work-group meet, and see what the others wrote to local memory."""
    T.evaluate(tvm.ir.Call("tirx.tvm_storage_sync", [tvm.ir.StringImm("shared")], ret_ty="void"))


def register(value: tirx.Expr) -> Any:
    """A variable of a work-item, ``r[0]``, that starts as `value`."""
    cell = registers(1, value.ty.dtype)
    cell[0] = value
    return cell


def hold(value: tirx.Expr) -> tirx.Expr:
    """`value`, calculated here and once.

    TVM substitutes what ``T.Bind`` names wherever it is used: what is long and used more than once
    grows exponentially, on CPUs while compiling and on GPUs in the sources too.
    """
    return register(value)[0]


def int32(value: int) -> tirx.Expr:
    """A constant of a kernel's own numbers."""
    return tirx.const(value, "int32")


def int64(size: Any) -> tirx.Expr:
    """A size, as a constant where it is known."""
    return tirx.const(size, "int64") if isinstance(size, int) else size


def registers(count: int, dtype: str) -> Any:
    """`count` variables of a work-item or a thread, in registers where constants index them."""
    # On a CPU TVM puts what is small and "global" on the stack, and takes "local" from a pool.
    scope = "local" if _launching.get() else "global"
    return T.buffer_proxy(T.decl_buffer([count], str(dtype), scope=scope))


def spread(count: tirx.Expr, work: tirx.Expr, body: Callable[[tirx.Expr], None]) -> None:
    """``body(i)`` for each `i` below `count`, on all cores where `work` elements are worth it.

    The body is written twice.
    """
    with T.If(work < _MIN_TO_SPREAD):
        with T.Then(), T.serial(0, count) as i:
            body(i)
        with T.Else(), T.parallel(0, count) as i:
            body(i)


def either(condition: tirx.Expr, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """Write statements for where `condition` holds, and others for where it does not."""
    with T.If(condition):
        with T.Then():
            then()
        with T.Else():
            otherwise()


def in_pieces(length: int, most: int, body: Callable[[Any, int], None]) -> None:
    """``body(first, size)`` for each `most` of `length` elements, and for those that are left."""
    pieces, rest = divmod(length, most)
    with T.serial(0, pieces) as piece:
        body(piece * most, most)
    if rest:
        body(pieces * most, rest)


def each(spec: DeviceSpec, count: Any, body: Callable[[tirx.Expr], None], *, work: int = 1) -> None:
    """``body(i)`` for each `i` below `count`, which do not depend on each other.

    A work-item for each on a GPU; on a CPU all cores, where `count` times `work` elements are
    worth it.
    """
    if spec.launches_grids:
        items = group_size(count if isinstance(count, int) else None, spec)
        # Drivers refuse to launch nothing.
        with nullcontext() if isinstance(count, int) else when(count > 0):
            with launch(-(-count // items), items) as (group, item):
                at = hold(group * items + item)
                with when(at < count):
                    body(at)
        return
    few = isinstance(count, int) and count * work < _MIN_TO_SPREAD
    with (T.serial if few else T.parallel)(0, count) as at:
        body(at)


@contextmanager
def when(condition: tirx.Expr) -> Iterator[None]:
    """Statements for where `condition` holds."""
    with T.If(condition), T.Then():
        yield
