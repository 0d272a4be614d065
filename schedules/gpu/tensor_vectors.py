"""Vectors of neighbouring lanes in CUDA C: loaded, stored and added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.script.ir_builder import tirx as T

__all__ = ["add_sums", "has_vectors", "load_vector", "store_vector"]

_TYPES = {
    "float16": "half",
    "float32": "float",
    "int8": "signed char",
    "int32": "int",
    "uint8": "unsigned char",
}
"""Types that lanes are loaded and stored in, as CUDA calls them."""

_BYTES = {"float16": 2, "float32": 4, "int8": 1, "int32": 4, "uint8": 1}
_VECTORS = {2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}
"""Types of so many bytes."""


def has_vectors(dtype: str) -> bool:
    """Return whether lanes of a type are loaded and stored together."""
    return dtype in _TYPES


def load_vector(registers: Any, source: Any, offset: tirx.Expr, count: int) -> None:
    """Load `count` neighbours from `offset` on to `registers` of their type, or int32 of int8."""
    dtype = str(source.dtype)
    kind, width = _TYPES[dtype], min(count, 16 // _BYTES[dtype])
    vector, target = _VECTORS[width * _BYTES[dtype]], _TYPES[str(registers.dtype)]
    name = f"tvm_edge_load_{dtype}_{count}"
    code = f"""
__device__ __forceinline__ void {name}({target}* registers, const {kind}* source) {{
#pragma unroll
  for (int i = 0; i < {count}; i += {width}) {{
    const {vector} loaded = *(const {vector}*)(source + i);
#pragma unroll
    for (int k = 0; k < {width}; k++) registers[i + k] = ((const {kind}*)&loaded)[k];
  }}
}}
"""
    pointers = T.address_of(registers[0]), T.address_of(source[offset])
    T.evaluate(cuda_func_call(name, *pointers, source_code=code))


_ROUND = """  union Stored {{
    half2 pairs[{pairs}];
    {vector} vector;
    __device__ Stored() {{}}
  }} stored;
#pragma unroll
  for (int i = 0; i < {pairs}; i++)
    stored.pairs[i] = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
  *({vector}*)target = stored.vector;
"""
_PACK = """  alignas(16) unsigned words[{words}];
#pragma unroll
  for (int i = 0; i < {words}; i++) {{
    const unsigned low = __byte_perm(values[4 * i], values[4 * i + 1], 0x0040);
    const unsigned high = __byte_perm(values[4 * i + 2], values[4 * i + 3], 0x0040);
    words[i] = __byte_perm(low, high, 0x5410);
  }}
  *({vector}*)target = *(const {vector}*)words;
"""
_PACK_TWO = "  *(unsigned short*)target = __byte_perm(values[0], values[1], 0x0040);\n"
_COPY = """#pragma unroll
  for (int i = 0; i < {count}; i += {width})
    *({vector}*)(target + i) = *(const {vector}*)(values + i);
"""


def store_vector(target: Any, offset: tirx.Expr, values: Sequence[tirx.Expr]) -> None:
    """Store values side by side: float32 rounded to float16, or int32 as the int8 that they are."""
    count, dtype = len(values), str(target.dtype)
    name, size = f"tvm_edge_store_{dtype}_{count}", _BYTES[dtype]
    given = "float" if dtype.startswith("float") else "int"
    width = min(count, 16 // size)
    vector = _VECTORS[width * size]
    if size == 2:
        body = _ROUND.format(pairs=count // 2, vector=vector)
    elif size == 1:
        body = _PACK_TWO if count == 2 else _PACK.format(words=count // 4, vector=vector)
    else:
        body = _COPY.format(count=count, width=width, vector=vector)
    names = [f"v{i}" for i in range(count)]
    given_all = ", ".join(f"{given} {name}" for name in names)
    code = f"""
__device__ __forceinline__ void {name}({_TYPES[dtype]}* target, {given_all}) {{
  alignas(16) const {given} values[{count}] = {{{", ".join(names)}}};
{body}}}
"""
    T.evaluate(cuda_func_call(name, T.address_of(target[offset]), *values, source_code=code))


def add_sums(registers: Any, source: Any, offset: tirx.Expr, count: int) -> None:
    """Add `count` partial sums, four at least, from `offset` on to `registers`."""
    kind = _TYPES[str(source.dtype)]
    name = f"tvm_edge_add_{kind}s_{count}"
    code = f"""
__device__ __forceinline__ void {name}({kind}* registers, const {kind}* source) {{
#pragma unroll
  for (int i = 0; i < {count}; i += 4) {{
    const {kind}4 loaded = *(const {kind}4*)(source + i);
    registers[i] += loaded.x;
    registers[i + 1] += loaded.y;
    registers[i + 2] += loaded.z;
    registers[i + 3] += loaded.w;
  }}
}}
"""
    pointers = T.address_of(registers[0]), T.address_of(source[offset])
    T.evaluate(cuda_func_call(name, *pointers, source_code=code))
