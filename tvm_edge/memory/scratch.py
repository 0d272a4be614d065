"""Scratch space that kernels of the CPU allocate while they run.

What a schedule asks for beside a kernel's results is planned like a tensor
(:mod:`tvm_edge.relay_passes.memory.add_workspace`). The rest a kernel allocates by itself: stages
of a composed kernel, as Winograd's transformed images and products. How large they are is known
after TVM's passes that shrink them to what is alive at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile, zip_longest

import tvm
from tvm import s_tir, tirx

from tvm_edge.lowering import cpu_pipeline
from tvm_edge.lowering.kernel_cache import entry_name, open_cache
from tvm_edge.schedules.accesses import constant, nodes_in
from tvm_edge.schedules.typical import evaluate

__all__ = ["Scratch", "kept", "scratch_of"]

_ON_STACK = 1024  # bytes: TVM's kMaxStackAlloca
_PAGE = 4096  # what TVM's pool of workspaces rounds to
_LAST = "StorageRewrite"  # the last of the passes that change allocations


@dataclass(frozen=True)
class Scratch:
    """Allocations of one kernel, in bytes, largest first.

    Attributes
    ----------
    whole : tuple[int, ...]
        Made once in a launch.
    of_thread : tuple[int, ...]
        Made by each thread for itself.
    """

    whole: tuple[int, ...] = ()
    of_thread: tuple[int, ...] = ()

    def total(self, threads: int) -> int:
        """Bytes of a launch on so many threads."""
        return sum(self.whole) + threads * sum(self.of_thread)


def scratch_of(
    func: tirx.PrimFunc, target: tvm.target.Target, lengths: Mapping[str, int] | None = None
) -> Scratch:
    """Return the allocations of a scheduled kernel of a CPU.

    Parameters
    ----------
    func : PrimFunc
    target : tvm.target.Target
        The CPU, for a kernel that does not name its own.
    lengths : mapping of str to int, optional
        Of open lengths, by name: arrays of others do not count.
    """
    if not _allocates(func, bool(lengths)):
        return Scratch()
    cache = open_cache()
    if cache is None:
        return _measured(func, target, lengths or {})
    text = tvm.ir.save_json(func)
    name = entry_name(__file__, "scratch", str(target), dict(lengths or {}), text)
    known = cache.get(name)
    if known is not None:
        return Scratch(*map(tuple, json.loads(known)))
    found = _measured(func, target, lengths or {})
    cache.put(name, json.dumps([found.whole, found.of_thread]).encode())
    return found


def _measured(
    func: tirx.PrimFunc, target: tvm.target.Target, lengths: Mapping[str, int]
) -> Scratch:
    """Lower a kernel as far as to its allocations, which takes some milliseconds."""
    name = "kernel"
    mod = tirx.transform.BindTarget(target)(
        tvm.IRModule({name: func.with_attr("global_symbol", name)})
    )
    with target:
        for each in _to_allocations():
            mod = each(mod)
    body = mod[name].body
    parallel = (loop for loop in nodes_in(body, tirx.For) if loop.kind == tirx.ForKind.PARALLEL)
    inside = [buffer for loop in parallel for buffer in _allocated(loop.body)]
    everywhere = _allocated(body)
    outside = [b for b in everywhere if not any(b.same_as(own) for own in inside)]
    return Scratch(_sizes(outside, lengths), _sizes(inside, lengths))


def kept(kernels: Iterable[Scratch], threads: int) -> int:
    """Bytes that the runtime keeps for a model's kernels from one to the next.

    TVM's pool of workspaces, which each thread has for itself, hands out a free piece that is large
    enough, or makes its largest one larger. It ends with as many pieces as a kernel needs at once,
    the largest as large as the largest that is asked for, and so on.
    """
    found = list(kernels)
    whole = zip_longest(*(each.whole for each in found), fillvalue=0)
    of_thread = zip_longest(*(each.of_thread for each in found), fillvalue=0)
    return sum(map(max, whole)) + threads * sum(map(max, of_thread))


def _to_allocations() -> list[tvm.transform.Pass]:
    passes = list(cpu_pipeline.PASSES)
    before = list(takewhile(lambda each: not str(each.info.name).endswith(_LAST), passes))
    return passes[: len(before) + 1]


def _allocates(func: tirx.PrimFunc, open_too: bool) -> bool:
    """Return whether there is anything to look for: lowering a kernel costs some milliseconds."""

    def may_be_large(buffer: tirx.Buffer) -> bool:
        is_open = open_too and any(constant(length) is None for length in buffer.shape)
        return buffer.scope() == "global" and (is_open or _nbytes(buffer, {}) > _ON_STACK)

    return any(
        any(may_be_large(buffer) for buffer in node.alloc_buffers)
        for node in nodes_in(func.body, s_tir.SBlock)
    ) or any(may_be_large(node.buffer) for node in nodes_in(func.body, tirx.AllocBuffer))


def _allocated(stmt: tirx.Stmt) -> list[tirx.Buffer]:
    return [node.buffer for node in nodes_in(stmt, tirx.AllocBuffer)]


def _sizes(buffers: Iterable[tirx.Buffer], lengths: Mapping[str, int]) -> tuple[int, ...]:
    sizes = [size for size in (_nbytes(b, lengths) for b in buffers) if size > _ON_STACK]
    return tuple(sorted((-(-size // _PAGE) * _PAGE for size in sizes), reverse=True))


def _nbytes(buffer: tirx.Buffer, lengths: Mapping[str, int]) -> int:
    """Bytes of an array in memory; 0 of one in registers, and of one that only the run sizes."""
    if buffer.scope() != "global":
        return 0
    shape = [evaluate(length, lengths) for length in buffer.shape]
    if any(length is None for length in shape):
        return 0
    itemsize = int(tvm.DataType(str(buffer.dtype)).itemsize)  # of a vector, all of it
    return itemsize * math.prod(n or 0 for n in shape)
