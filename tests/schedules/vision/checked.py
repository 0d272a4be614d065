"""CPU kernels whose every access is checked; run as a process, for a bad one ends it.

TVM's own ``tirx.instrument_bound_checkers`` changes nothing here: its pass looks for bounds that
only the removed StorageFlatten left in the code.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

import tests.conftest  # noqa: F401  # LLVM does not optimise, a quarter of the time
from tests.kernels import built_for_cpu
from tests.schedules.vision.harness import Built, machine, numbers, run_kernel
from tvm_edge.schedules.emit import Kernel, Tensor, function
from tvm_edge.schedules.vision import compaction, cpu, decode, nms, roi
from tvm_edge.schedules.vision.box_nms import Rows, box_nms
from tvm_edge.schedules.vision.efficient_nms import list_detections, score_kept
from tvm_edge.schedules.vision.nonzero import count_nonzero, nonzero_indices
from tvm_edge.schedules.vision.proposal import propose
from tvm_edge.schedules.vision.scatter import apply_parts, element_targets, slice_targets
from tvm_edge.schedules.vision.soft_nms import soft_nms

# Elements behind a buffer's start where no memory is: the access ends the process.
NOWHERE = 1 << 44


# Whether to take all sizes, or the last of each kernel: ``make test`` does not build all of them.
EVERY_SIZE = False

# Half of the time: how small a buffer could be, and what does nothing, found through all checks.
LEFT_OUT = ["s_tir.CompactBufferAllocation", "tirx.RemoveNoOp"]


def sizes_of(sizes: list[Any]) -> list[Any]:
    """`sizes`, as far as they are to be tried."""
    return sizes if EVERY_SIZE else sizes[-1:]


def checked(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Send every index outside of its buffer to where no memory is."""

    def inside(buffer: tirx.Buffer, indices: list[tirx.Expr]) -> list[tirx.Expr]:
        found = []
        for index, size in zip(indices, buffer.shape, strict=True):
            wide, last = index.astype("int64"), size.astype("int64") - 1
            # The sign of either; comparisons would cost TVM a third more time to simplify.
            good = ((wide | (last - wide)) >> 63) == 0
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
    return kernel, built_for_cpu(checked(kernel.func))


def with_checks(kernel: Kernel) -> Kernel:
    """A kernel with its checks, not built yet."""
    return replace(kernel, func=checked(kernel.func))


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
    boxes()
    searches()
    scatters()


def boxes() -> None:
    """Kernel that decodes boxes and moves the valid ones to the front."""
    on = machine("llvm")
    for shape in sizes_of([(1, 1, 2), (3, 70, 6)]):
        how: dict[str, Any] = {"score_threshold": 0.0, "id_index": 0, "score_index": 1}
        rows = compaction.valid_rows(*shape, "float32", on.spec, **how)
        run_kernel(on, with_checks(rows), numbers(4, shape, "float32"))
    for batch, classes, count in sizes_of([(1, 1, 1), (2, 3, 50), (1, 90, 60)]):
        shapes = [(batch, classes, count), (batch, 4 * count), (1, count, 4)]
        how = {"clip": True, "threshold": 0.5, "variances": (0.1, 0.1, 0.2, 0.2)}
        rows = decode.decode_locations(batch, classes, count, "float32", on.spec, **how)
        run_kernel(on, with_checks(rows), *(numbers(5, shape, "float32") for shape in shapes))


def suppressions() -> None:
    """Boxes of any numbers; lists on one core each, and blocks that cores share."""
    on = machine("llvm")
    lists = [(1, 1, 1, 1), (1, 1, 3000, 3000), (2, 3, 70, 9)]
    # Lists on one core each, and blocks that cores share, whatever else is left out.
    for batch, classes, count, most in lists if EVERY_SIZE else lists[1:]:
        for score in sizes_of([None, 0.0]):
            kernel = nms.select_boxes(
                batch,
                classes,
                count,
                on.spec,
                max_selected=most,
                iou_threshold=0.3,
                score_threshold=score,
                center_point_box=False,
            )
            corners = np.random.default_rng(9).random(batch * count * 4, "float32")
            corners[::7] = numbers(9, corners[::7].shape, "float32")
            scores = numbers(10, batch * classes * count, "float32")
            picked, counts = run_kernel(on, with_checks(kernel), corners, scores)
            number = with_checks(nms.number_selected(batch * classes, on.spec))
            starts, (rows, _) = run_kernel(on, number, counts)
            fill = with_checks(nms.fill_indices(batch, classes, most, on.spec))
            run_kernel(on, fill, picked, counts, starts, shapes=[(int(rows), 3)])
    data = numbers(11, (2, 80, 6), "float32")
    tables = Rows(2, 80, 6, "float32", 2, 1, 0, 1, -1.0, False)
    how: dict[str, Any] = {"iou_threshold": 0.5, "by_class": True}
    for kernel in (
        box_nms(tables, on.spec, considered=50, **how),
        soft_nms(tables, on.spec, sigma=0.5, **how),
    ):
        run_kernel(on, with_checks(kernel), data.reshape(-1))
    sizes = {"most": 20}
    select = score_kept(
        2,
        3,
        80,
        on.spec,
        iou_threshold=0.5,
        score_threshold=-1.0,
        background=None,
        center=False,
        **sizes,
    )
    boxes, scores = numbers(12, 640, "float32"), numbers(13, 480, "float32")
    values, kept, _ = run_kernel(on, with_checks(select), boxes, scores)
    order = np.argsort(-values.reshape(2, 60), axis=1)[:, :50].astype("int32")
    best = np.take_along_axis(values.reshape(2, 60), order, 1)
    finish = list_detections(2, 3, 80, on.spec, best=50, wanted=70, **sizes)
    run_kernel(on, with_checks(finish), boxes, kept, best.reshape(-1), order.reshape(-1))
    kernel = propose(
        2,
        (3, 4),
        on.spec,
        scales=[1.0],
        ratios=[0.5, 2.0],
        stride=16,
        considered=20,
        most=15,
        iou_threshold=0.5,
        min_size=4,
    )
    tensors = [numbers(14 + i, size, "float32") for i, size in enumerate((96, 192, 6))]
    run_kernel(on, with_checks(kernel), *tensors)


def regions() -> None:
    """ROIAlign and ROI pooling of any numbers, few regions of a map and many."""
    spec = machine("llvm").spec
    random = np.random.default_rng(0)
    odd = np.array([np.nan, np.inf, -np.inf, 1e38, -1e30, 1e9, 0, 5.5, 3, -1, 40, 7], "float32")
    for shape, count in [((2, 70, 6, 5), 400), ((1, 3, 30, 40), 2)]:
        maps = roi.Maps(shape, "float32", count, "int64")
        rows = roi.Maps(shape, "float32", count)
        kernels = [roi.roi_pool(rows, (2, 3), spec, scale=0.5)]
        modes = [("avg", 0), ("avg", 3), ("max", 0), ("max", 3)]
        for mode, ratio in modes if EVERY_SIZE else modes[1:3]:
            how = {"scale": 0.5, "offset": 0.5, "at_least_one": False}
            kernels.append(roi.roi_align(maps, (2, 3), spec, ratio=ratio, mode=mode, **how))
        corners = random.choice(odd, (count, 5))
        pictures = random.integers(-9, 9, count)
        for kernel in kernels:
            regions = [corners] if len(kernel.inputs) == 2 else [corners[:, 1:].copy(), pictures]
            results = [np.empty([*map(int, s)], dtype) for s, dtype in kernel.outputs]
            values = [np.ones(shape, "float32"), *regions, *results]
            build(kernel)[1](*map(tvm.runtime.tensor, values))


def searches() -> None:
    """Places of numbers other than zero, in parts of cores, some without an element."""
    on = machine("llvm")
    for shape in sizes_of([(1,), (2, 3), (70, 90)]):
        data = (np.random.default_rng(6).random(shape) < 0.5).astype("int8")
        count = with_checks(count_nonzero(shape, "int8", on.spec))
        (_, number), found = run_kernel(on, count, data)
        fill = with_checks(nonzero_indices(shape, "int8", on.spec))
        run_kernel(on, fill, data, found, shapes=[(len(shape), int(number))])


def scatters() -> None:
    """Indices of any size, updates of elements and of slices that two cores share."""
    on = machine("llvm")
    for shape, rows, axes in sizes_of([((1,), 1, 1), ((3, 5000), 4, 1), ((4, 5, 6), 300, 2)]):
        data: Tensor = (shape, "float32")
        inner = shape[axes:]
        updates: Tensor = ((rows, *inner), "float32")
        indices = numbers(7, (rows, axes), "int64")
        find = slice_targets(data, (indices.shape, "int64"), axes, on.spec, "int32")
        x, u = (np.ones(size, dtype) for size, dtype in (data, updates))
        (targets,) = run_kernel(on, with_checks(find), x, indices)
        apply = apply_parts(data, ((rows,), "int32"), updates, axes, "add", on.spec)
        run_kernel(on, with_checks(apply), x, targets, u)
    for shape, rows_of in sizes_of([((4, 5), (3, 4)), ((30, 40), (29, 400))]):
        find = element_targets((shape, "int8"), (rows_of, "int64"), 1, on.spec, "int64")
        indices, x = numbers(8, rows_of, "int64"), np.ones(shape, "int8")
        (targets,) = run_kernel(on, with_checks(find), x, indices)
        by_row = (shape[0], rows_of[0])
        kinds: list[Tensor] = [(shape, "int8"), (targets.shape, "int64"), (rows_of, "int8")]
        apply = apply_parts(*kinds, 2, "max", on.spec, by_row=by_row)
        run_kernel(on, with_checks(apply), x, targets, np.ones(rows_of, "int8"))


if __name__ == "__main__":
    with tvm.transform.PassContext(disabled_pass=LEFT_OUT):
        if sys.argv[1].isdigit():
            outside(int(sys.argv[1]))
        else:
            EVERY_SIZE = sys.argv[1] == "all"
            everything()
            regions()
            suppressions()
    print("inside")
