"""CPU kernels whose every access is checked; run as a process, for a bad one ends it.

TVM's own ``tirx.instrument_bound_checkers`` changes nothing here: its pass looks for bounds that
only the removed StorageFlatten left in the code.
"""

from __future__ import annotations

import sys

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tests.schedules.harness import this_cpu
from tests.schedules.vision.harness import Built, machine, numbers
from tvm_edge.schedules.vision import cpu
from tvm_edge.schedules.vision.emit import Kernel, function

# Elements behind a buffer's start where no memory is: the access ends the process.
NOWHERE = 1 << 44


def checked(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Send every index outside of its buffer to where no memory is."""

    def inside(buffer: tirx.Buffer, indices: list[tirx.Expr]) -> list[tirx.Expr]:
        found = []
        for index, size in zip(indices, buffer.shape, strict=True):
            wide = index.astype("int64")
            good = tirx.all(wide >= 0, wide < size.astype("int64"))
            found.append(tirx.if_then_else(good, wide, tirx.const(NOWHERE, "int64")))
        return found

    def load(node: tvm.ir.TensorLoad) -> tvm.ir.TensorLoad:
        return tirx.BufferLoad(node.source, inside(node.source, list(node.indices)))

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        indices = inside(node.buffer, list(node.indices))
        return tirx.BufferStore(node.buffer, node.value, indices)

    body = tvm_ffi.structural_map(func.body, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])
    return func.with_body(body)


def build(kernel: Kernel) -> Built:
    """A kernel with checks."""
    return kernel, tvm.compile(checked(kernel.func), target=this_cpu())


def outside(by: int) -> None:
    """A kernel that reads `by` elements behind its input."""

    def body(data: tirx.Buffer, out: tirx.Buffer) -> None:
        out[0] = data[3 + by]

    kernel = function([([4], "float32")], [([1], "float32")], body)
    machine("llvm").run(build(kernel), [np.ones(4, "float32")], [(1,)])


def everything() -> None:
    """Sorts, top-k and scans, short and long, one core's and shared ones."""
    on = machine("llvm")
    dtype = "float32"
    rows = build(
        cpu.argsort_rows(dtype, on.spec, descending=True, index_dtype="int32", values=True)
    )
    for shape in [(1, 1), (3, 7), (2, 48), (2, 49), (1, 16385), (4, 300)]:
        on.run(rows, [numbers(0, shape, dtype, 99)], [shape, shape])
    segments = build(
        cpu.argsort_segments("int64", "int32", on.spec, descending=False, index_dtype="int64")
    )
    for offsets in ([0, 0, 5], [3, 300, 300, 999], [0] * 50 + [1000], [-4, 9, 1 << 30]):
        data = numbers(1, 1000, "int64", 99)
        on.run(segments, [data, np.array(offsets, "int32")], [data.shape])
    k = 9
    top = build(cpu.top_k_rows(dtype, k, on.spec, largest=True, index_dtype="int64"))
    for shape in [(1, k), (3, k + 5), (2, 40000)]:
        on.run(top, [numbers(2, shape, dtype, 9999)], [(shape[0], k)] * 2)
    scan = build(cpu.scan_lines(dtype, dtype, on.spec, exclusive=True, reverse=True))
    for shape in [(1, 1, 1), (3, 17, 1), (1, 70001, 1), (2, 5, 3), (2, 9, 130)]:
        on.run(scan, [np.ones(shape, dtype)], [shape])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        outside(int(sys.argv[1]))
    else:
        everything()
    print("inside")
