"""Vectors of global and local memory: one access where they are aligned, ``vloadN`` where not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tvm_edge.lowering import opencl_pipeline
from tvm_edge.lowering.opencl_accesses import with_vector_accesses
from tvm_edge.lowering.opencl_source import sources_rewritten

SOURCE = """__kernel void other(__global float* restrict image, __global half* restrict row);
__kernel void f(__global float* restrict image, __global const half* restrict row, int n) {
  __local float tile[64];
  float sums[8];
  {body}
}
"""


def written(body: str) -> str:
    """What becomes of a line of a kernel."""
    text = with_vector_accesses(SOURCE.replace("{body}", body))
    assert "__local float tile[64] __attribute__((aligned(16)));" in text
    assert text.startswith(SOURCE[: SOURCE.index("__local")])
    return text.split("float sums[8];\n  ")[1].removesuffix("\n}\n")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = vload4(0, image + (n * 4));", "a = *((__global float4 *)(image + (n * 4)));"),
        ("a = vload8(0, row + f(n, 1));", "a = *((__global half8 *)(row + f(n, 1)));"),
        (
            "vstore4(vload4(0, image + n), 0, tile + (n % 4));",
            "*((__local float4 *)(tile + (n % 4))) = *((__global float4 *)(image + n));",
        ),
        # In registers, but what is read is not.
        (
            "vstore2((vload2(0, tile + 2) + vload2(0, sums + 0)), 0, sums + 0);",
            "vstore2((*((__local float2 *)(tile + 2)) + vload2(0, sums + 0)), 0, sums + 0);",
        ),
        # Longer than what is known to be aligned; three have the space of four; not TVM's own.
        ("a = vload8(0, image + n);", "a = vload8(0, image + n);"),
        ("a = vload3(0, image + n);", "a = vload3(0, image + n);"),
        (
            "a = vload4(0, ((__global float *)image + n));",
            "a = vload4(0, ((__global float *)image + n));",
        ),
    ],
)
def test_what_is_written(body: str, expected: str) -> None:
    assert written(body) == expected


def _shifted(offset: int) -> tirx.PrimFunc:
    """Sums with the next lane, four elements at a time, stored from `offset` on."""

    @T.prim_func
    def main(x: T.Buffer((64,), "float32"), y: T.Buffer((72,), "float32")):  # type: ignore
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for block in T.thread_binding(2, thread="blockIdx.x"):
            for item in T.thread_binding(8, thread="threadIdx.x"):
                for lane in T.vectorized(4):
                    y[block * 32 + item * 4 + lane + offset] = x[block * 32 + item * 4 + lane] + 1.0

    return main


@pytest.mark.parametrize("offset", [0, 4, 1, 2])
def test_stores_that_are_not_aligned(offset: int) -> None:
    """They ask for nothing; an aligned vector that is written to such a place does not fault."""
    opencl_pipeline.register()
    with sources_rewritten():
        built: Any = tvm.compile(
            _shifted(offset), target="opencl", tir_pipeline=opencl_pipeline.OPENCL
        )
    source = built.mod.imports[0].inspect_source()
    aligned = offset % 4 == 0
    assert bool(re.search(r"\*\(\(__global float4 \*\)\(\w*y\w* \+", source)) is aligned
    assert ("vstore4(" in source) is not aligned
    assert "vload4" not in source
    if not tvm.runtime.enabled("opencl") or not tvm.opencl(0).exist:
        pytest.skip("no OpenCL device on this machine")
    x = np.random.default_rng(offset).standard_normal(64, dtype="float32")
    y = tvm.runtime.tensor(np.zeros(72, "float32"), tvm.opencl(0))
    built(tvm.runtime.tensor(x, tvm.opencl(0)), y)
    expected = np.zeros(72, "float32")
    expected[offset : offset + 64] = x + 1
    np.testing.assert_array_equal(y.numpy(), expected)
