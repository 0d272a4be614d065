"""Vectors that CUDA sources convert: read anew each time (no device is needed)."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm.script import tirx as T

from tvm_edge.errors import MissingDependencyError
from tvm_edge.hardware import resolve_target
from tvm_edge.lowering import cuda_pipeline
from tvm_edge.lowering.cuda_compiler import cuda_compiler


@T.prim_func(s_tir=True)
def twice(source: T.Buffer((128,), "float32"), target: T.Buffer((64, 4), "float16")) -> None:
    """Two pairs pass through the same registers; the second only for some of the threads."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "twice"})
    pair = T.alloc_buffer((2,), "float32", scope="local")
    for item in T.thread_binding(32, "threadIdx.x"):
        pair[0] = source[item]
        pair[1] = source[item + 32]
        for lane in T.vectorized(2):
            target[item, lane] = T.Cast("float16", pair[lane])
        pair[0] = source[item + 64]
        pair[1] = source[item + 96]
        if item < 20:
            for lane in T.vectorized(2):
                target[item, 2 + lane] = T.Cast("float16", pair[lane])


def source_by(pipeline: str) -> str:
    resolved = resolve_target("jetson-orin-nano")
    try:
        with cuda_compiler(str(resolved.target.attrs["arch"])):
            built = tvm.tirx.build(twice, target=resolved.target, pipeline=pipeline)
    except MissingDependencyError as missing:
        pytest.skip(str(missing))
    return str(built.imports[0].inspect_source())


def reads(source: str) -> int:
    """Count the reads of the pair of registers as a vector."""
    return len(re.findall(r"\*\(float2\*\)\(pair", source))


def test_registers_that_were_written_since_are_read_again() -> None:
    cuda_pipeline.register()
    source = source_by(cuda_pipeline.CUDA)
    assert reads(source) == 2
    written = [line for line in source.splitlines() if re.search(r"= *\(half\)", line)]
    assert len({re.sub(r".*\(half\)\((\w+)\..*", r"\1", line) for line in written}) == 2


def test_why() -> None:
    """TVM's own pipeline takes the first values again: when this fails, the pass can go."""
    assert reads(source_by("s_tir")) == 1
