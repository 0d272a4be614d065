"""Vectors in memory that are aligned to their size: one access of a vector, and not ``vloadN``.

TVM reads and writes vectors as ``vloadN(0, pointer)``, which promises the alignment of an element
and no more: NVIDIA's compiler makes N scalar accesses of it, in local memory too, where
``*(__global float4*)`` is one. TVM writes vector loads only where it can prove that they are
aligned, but stores always.
"""

from __future__ import annotations

import re

import tvm
import tvm_ffi
from tvm import sym, tirx

from tvm_edge.lowering.opencl_functions import is_opencl
from tvm_edge.schedules.accesses import constant

__all__ = ["NameUnalignedStores", "with_vector_accesses"]

_MOST = 16  # bytes that GPUs access at once; tensors and local arrays begin at a multiple

_BYTES = {
    **dict.fromkeys(("char", "uchar"), 1),
    **dict.fromkeys(("short", "ushort", "half"), 2),
    **dict.fromkeys(("int", "uint", "float"), 4),
    **dict.fromkeys(("long", "ulong", "double"), 8),
}

_ACCESS = re.compile(r"\bv(load|store)(2|4|8|16)\(")
_LOCAL = re.compile(r"^([ \t]*__local (\w+) (\w+)\[\d+\]);", re.MULTILINE)
_KERNEL = re.compile(r"\b__kernel\b[^;{]*\{")  # its definition, not its declaration
_PARAMETER = re.compile(r"__global (?:const )?(\w+) ?\* ?(?:restrict )?(\w+)(?=[,)])")
# TVM's own vectors; the pointers of calls such as ours begin with a parenthesis.
_POINTER = re.compile(r"(\w+) \+ ")


@tirx.transform.prim_func_pass(opt_level=0, name="NameUnalignedStores")
class NameUnalignedStores:
    """Call ``vstoreN`` where a vector is stored that may not be aligned to its size.

    Vectors that TVM writes of itself are then aligned, as :func:`with_vector_accesses` assumes.
    Runs last: before ``StmtSimplify`` an index may be hidden in a variable.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        if not is_opencl(func):
            return func
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, _named)))


def _named(store: tirx.BufferStore) -> tirx.Stmt:
    index = store.indices[0]
    if not isinstance(index, tirx.Ramp) or constant(index.stride) != 1:
        return store
    lanes = constant(index.lanes)
    known = sym.Analyzer().modular_set(index.base)
    if lanes not in (2, 4, 8, 16) or (known.coeff % lanes == 0 and known.base % lanes == 0):
        return store
    first = tirx.BufferLoad(store.buffer, [index.base])
    call = tirx.call_extern("int32", f"vstore{lanes}", store.value, 0, tirx.address_of(first))
    return tirx.Evaluate(call)


def with_vector_accesses(source: str) -> str:
    """The source of one kernel with accesses of aligned vectors in global and local memory.

    Vectors of more than 16 bytes, and in registers, stay as they are.

    Examples
    --------
    ``vload4(0, image + (x * 4))`` becomes ``*((__global float4 *)(image + (x * 4)))`` and
    ``vstore4(v, 0, tile + 0)`` becomes ``*((__local float4 *)(tile + 0)) = v``; the array of the
    tile is aligned for it.
    """
    kernel = "".join(_KERNEL.findall(source))
    memory = {name: ("__global", element) for element, name in _PARAMETER.findall(kernel)}
    memory |= {name: ("__local", element) for _, element, name in _LOCAL.findall(source)}
    aligned = _LOCAL.sub(rf"\1 __attribute__((aligned({_MOST})));", source)
    return _rewritten(aligned, memory)


def _rewritten(text: str, memory: dict[str, tuple[str, str]]) -> str:
    """Accesses from the left to the right, those within the arguments of others included."""
    parts = []
    position = 0
    while (access := _ACCESS.search(text, position)) is not None:
        *values, last = _arguments(text, access.end())
        pointer, end = text[slice(*last)], last[1] + 1
        vector = _vector(pointer, int(access[2]), memory)
        parts.append(text[position : access.start()])
        if vector is None:
            inside = _rewritten(text[access.end() : last[1]], memory)
            parts.append(f"{access[0]}{inside})")
        elif access[1] == "load":
            parts.append(vector)
        else:
            parts.append(f"{vector} = {_rewritten(text[slice(*values[0])], memory)}")
        position = end
    return "".join(parts) + text[position:]


def _arguments(text: str, start: int) -> list[tuple[int, int]]:
    """Find the place of each argument of a call, without the space before it."""
    found = []
    depth = 0
    for at in range(start, len(text)):
        if text[at] in "([{":
            depth += 1
        elif depth and text[at] in ")]}":
            depth -= 1
        elif not depth and text[at] in ",)":
            found.append((start + (text[start] == " "), at))
            start = at + 1
            if text[at] == ")":
                return found
    raise ValueError(f"no end of a call in {text[start : start + 80]!r}")


def _vector(pointer: str, lanes: int, memory: dict[str, tuple[str, str]]) -> str | None:
    """The vector at a pointer as an expression, if it may be accessed as one."""
    name = _POINTER.match(pointer)
    if name is None or name[1] not in memory:
        return None
    space, element = memory[name[1]]
    if lanes * _BYTES.get(element, _MOST) > _MOST:
        return None
    return f"*(({space} {element}{lanes} *)({pointer}))"
