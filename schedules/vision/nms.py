"""Kernels of ONNX's NonMaxSuppression: choose for each class, count, and list the chosen boxes."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, each, function, hold, register, when
from tvm_edge.schedules.vision.boxes import BOX_DTYPE, Box, Candidates, Overlap, exactly, load_box
from tvm_edge.schedules.vision.cpu import nms as cpu_nms
from tvm_edge.schedules.vision.gpu import nms as gpu_nms
from tvm_edge.schedules.vision.gpu.scan import LineScan
from tvm_edge.schedules.vision.keys import ordered_words
from tvm_edge.schedules.vision.operators import OPERATORS

__all__ = ["fill_indices", "number_selected", "select_boxes", "suppression"]


def suppression(spec: DeviceSpec) -> type[cpu_nms.Suppression] | type[gpu_nms.Suppression]:
    """Return the suppression kernels of a device."""
    return gpu_nms.Suppression if spec.launches_grids else cpu_nms.Suppression


def select_boxes(
    batch: int,
    classes: int,
    boxes: int | None,
    spec: DeviceSpec,
    *,
    max_selected: int | None,
    iou_threshold: float,
    score_threshold: float | None,
    center_point_box: bool,
) -> Kernel:
    """Build the kernels of greedy suppression within each class of each picture.

    Parameters
    ----------
    batch, classes : int
        At least 1.
    boxes, max_selected : int or None
        At least 1; ``None``, for a CPU alone, where the lengths of ``scores`` and ``picked`` tell
        them in the run. They may be 0 then.
    spec : DeviceSpec
    iou_threshold : float
        From 0 to 1.
    score_threshold : float or None
        Scores above it take part: NaN is above none. Without one all do, NaN as the least.
    center_point_box : bool

    Returns
    -------
    Kernel
        ``(boxes[batch * boxes * 4], scores[batch * classes * boxes],
        picked[batch * classes * max_selected], counts[batch * classes], workspace...)``, all flat:
        of each list of `picked` the first ``counts`` are box indices in descending score.
    """
    lists = batch * classes
    # A kernel finds a length that is not constant in its tensors.
    corners, scored = (
        tirx.Var(name, "int64") if boxes is None else size * boxes
        for name, size in (("corners", batch * 4), ("scored", lists))
    )
    room = tirx.Var("room", "int64") if max_selected is None else lists * max_selected
    length = _each(scored, lists) if boxes is None else boxes
    most = _each(room, lists) if max_selected is None else max_selected
    plan = suppression(spec)(lists, length, most, Overlap(iou_threshold), spec)

    def body(box: Any, score: Any, picked: Any, counts: Any, *space: Any) -> None:
        def above(line: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            return score[line * length + at] > exactly(score_threshold)

        def key(line: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            return ordered_words(score[line * length + at], BOX_DTYPE, True)[0]

        def load(line: tirx.Expr, at: tirx.Expr) -> Box:
            first = hold((tirx.floordiv(line, classes) * length + at) * 4)
            return load_box(lambda i: box[first + i], center=center_point_box)

        candidates = Candidates(None if score_threshold is None else above, key, load)
        plan.write(candidates, picked, counts, space)

    return function(
        [([corners], BOX_DTYPE), ([scored], BOX_DTYPE)],
        [([room], "int32"), ([lists], "int32"), *plan.workspace],
        body,
    )


def _each(size: tirx.Expr, lists: int) -> tirx.Expr:
    """Return the length of one of some lists of `size` elements in all."""
    return tirx.floordiv(size, tirx.const(lists, "int64")).astype("int32")


def number_selected(lists: int, spec: DeviceSpec) -> Kernel:
    """Build ``(counts[lists], starts[lists], shape[2], workspace...)``.

    ``starts`` is where lists begin in the result. ``shape`` is int64, ``[sum(counts), 3]``.
    """
    scan = (
        LineScan(1, lists, "int32", OPERATORS["add"], True, spec) if spec.launches_grids else None
    )

    def body(counts: Any, starts: Any, shape: Any, *space: Any) -> None:
        def finish(total: tirx.Expr) -> None:
            shape[0] = total.astype("int64")
            shape[1] = tirx.const(3, "int64")

        if scan is None:
            total = register(tirx.IntImm("int32", 0))
            with T.serial(0, lists) as line:
                starts[line] = total[0]
                total[0] = total[0] + counts[line]
            finish(total[0])
            return

        def store(_: tirx.Expr, line: tirx.Expr, before: tirx.Expr) -> None:
            starts[line] = before
            with when(line == lists - 1):
                finish(before + counts[line])

        scan.write(lambda _, line: counts[line], store, space)

    outputs = [([lists], "int32"), ([2], "int64"), *(scan.workspace if scan else ())]
    return function([([lists], "int32")], outputs, body)


def fill_indices(batch: int, classes: int, max_selected: int | None, spec: DeviceSpec) -> Kernel:
    """Build ``(picked, counts, starts, out[m, 3])``: the lists one after the other.

    A row of ``out`` is picture, class and box, int64. The launch does not depend on `m`. Without
    `max_selected` the length of ``picked`` tells it.
    """
    lists = batch * classes
    room = tirx.Var("room", "int64") if max_selected is None else lists * max_selected
    most = _each(room, lists) if max_selected is None else max_selected

    def body(picked: Any, counts: Any, starts: Any, out: Any) -> None:
        def copy(index: tirx.Expr) -> None:
            line = tirx.floordiv(index, most)
            rank = tirx.floormod(index, most)
            with when(rank < counts[line]):
                row = starts[line] + rank
                out[row, 0] = tirx.floordiv(line, classes).astype("int64")
                out[row, 1] = tirx.floormod(line, classes).astype("int64")
                out[row, 2] = picked[index].astype("int64")

        each(spec, lists * most, copy)

    return function(
        [([room], "int32"), ([lists], "int32"), ([lists], "int32")],
        [([tirx.Var("m", "int64"), 3], "int64")],
        body,
    )
