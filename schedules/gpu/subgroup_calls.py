"""Operations of an Intel sub-group: block reads and writes, and shuffles.

These are functions of ``cl_intel_subgroups``, which all work-items of a sub-group have to reach.
Calls are opaque to TVM: it moves none into a branch that only some of them execute.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.emit import hold

__all__ = ["PIN", "block_read", "block_write", "lane_of", "pin", "shuffle", "shuffle_down"]

PIN = "tvm_edge_sub_group_size"
"""Placeholder in a kernel's body for the size of its sub-groups. OpenCL C has the size before the
kernel, where TVM cannot write it; :mod:`tvm_edge.lowering.opencl_attributes` moves it there."""


def pin(size: int) -> None:
    """Require sub-groups of `size` work-items of the launch that is being written."""
    T.evaluate(tirx.call_extern("int32", PIN, size))


def lane_of() -> tirx.Expr:
    """Return the index of a work-item in its sub-group."""
    return hold(tirx.Cast("int32", tirx.call_extern("uint32", "get_sub_group_local_id")))


def block_read(buffer: Any, offset: tirx.Expr) -> tirx.Expr:
    """Read ``buffer[offset + lane]`` of float32, all lanes in one message.

    `offset` is the same in all lanes.
    """
    word = tirx.call_extern("uint32", "intel_sub_group_block_read", _address(buffer, offset))
    return tirx.call_extern("float32", "as_float", word)


def block_write(buffer: Any, offset: tirx.Expr, value: tirx.Expr) -> None:
    """Write ``buffer[offset + lane] = value``; `offset`, 16-byte aligned, is the same in all."""
    word = tirx.call_extern("uint32", "as_uint", value)
    write = "intel_sub_group_block_write"
    T.evaluate(tirx.call_extern("int32", write, _address(buffer, offset), word))


def shuffle(value: tirx.Expr, lane: int) -> tirx.Expr:
    """Give all lanes the `value` of one; an operand's register region, where it is constant."""
    return tirx.call_extern("float32", "intel_sub_group_shuffle", value, lane)


def shuffle_down(value: tirx.Expr, following: tirx.Expr, lanes: int) -> tirx.Expr:
    """Return the value `lanes` further on in `value` and, after its end, in `following`."""
    return tirx.call_extern("float32", "intel_sub_group_shuffle_down", value, following, lanes)


def _address(buffer: Any, offset: tirx.Expr) -> ir.Call:
    # Block reads and writes are of 32-bit words, whatever their type.
    words = T.buffer_proxy(T.decl_buffer(buffer.shape, "uint32", buffer.data))
    return tirx.address_of(words[offset])
