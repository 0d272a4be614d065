"""Non-maximum suppression on a CPU: classes in parallel, each one sorted and swept.

The arithmetic follows ONNX Runtime operation by operation, so that index outputs are equal.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

__all__ = ["fill_indices", "select_boxes", "selected_shape"]


def select_boxes(
    batch: int,
    classes: int,
    boxes: int,
    *,
    max_selected: int,
    iou_threshold: float,
    score_threshold: float | None,
    center_point_box: bool,
) -> tirx.PrimFunc:
    """Greedy suppression within each (batch, class).

    Returns
    -------
    tirx.PrimFunc
        ``(boxes[batch, boxes, 4], scores[batch, classes, boxes],
        picked[batch * classes, max_selected], counts[batch * classes])``: ``picked`` holds box
        indices in descending score, of which the first ``counts`` are valid.
    """
    use_threshold = score_threshold is not None
    threshold = 0.0 if score_threshold is None else score_threshold

    def corners(box: T.Buffer, b: tirx.Expr, i: tirx.Expr) -> tuple[tirx.Expr, ...]:
        """Lowest and highest coordinate along the first and the second axis."""
        if center_point_box:
            half_w = box[b, i, 2] / T.float32(2)
            half_h = box[b, i, 3] / T.float32(2)
            return (
                box[b, i, 1] - half_h,
                box[b, i, 1] + half_h,
                box[b, i, 0] - half_w,
                box[b, i, 0] + half_w,
            )
        return (
            T.min(box[b, i, 0], box[b, i, 2]),
            T.max(box[b, i, 0], box[b, i, 2]),
            T.min(box[b, i, 1], box[b, i, 3]),
            T.max(box[b, i, 1], box[b, i, 3]),
        )

    def overlaps(box: T.Buffer, b: tirx.Expr, i: tirx.Expr, j: tirx.Expr) -> tirx.Expr:
        """Whether the intersection over union of two boxes is above the threshold."""
        y1, y1_end, x1, x1_end = corners(box, b, i)
        y2, y2_end, x2, x2_end = corners(box, b, j)
        height = T.min(y1_end, y2_end) - T.max(y1, y2)
        width = T.min(x1_end, x2_end) - T.max(x1, x2)
        shared = width * height
        area1 = (x1_end - x1) * (y1_end - y1)
        area2 = (x2_end - x2) * (y2_end - y2)
        union = area1 + area2 - shared
        zero = T.float32(0)
        return tirx.all(
            height > zero,
            width > zero,
            area1 > zero,
            area2 > zero,
            union > zero,
            shared / union > T.float32(iou_threshold),
        )

    @T.prim_func(private=True, s_tir=True)
    def nms_select(
        box: T.Buffer((batch, boxes, 4), "float32"),
        score: T.Buffer((batch, classes, boxes), "float32"),
        picked: T.Buffer((batch * classes, max_selected), "int32"),
        counts: T.Buffer((batch * classes,), "int32"),
    ):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        # TVM asks every kernel of a Relax module for a root block.
        with T.sblock("root"):
            for bc in T.parallel(batch * classes):
                b = bc // classes
                c = bc % classes
                order = T.alloc_buffer((boxes,), "int32")
                merged = T.alloc_buffer((boxes,), "int32")
                # Scalars that change: candidates, run width, the merge's cursors, a verdict.
                n = T.alloc_buffer((1,), "int32", scope="local")
                width = T.alloc_buffer((1,), "int32", scope="local")
                left = T.alloc_buffer((1,), "int32", scope="local")
                right = T.alloc_buffer((1,), "int32", scope="local")
                start = T.alloc_buffer((1,), "int32", scope="local")
                at = T.alloc_buffer((1,), "int32", scope="local")
                keep = T.alloc_buffer((1,), "int32", scope="local")

                n[0] = 0
                for j in range(boxes):
                    if (not use_threshold) or score[b, c, j] > T.float32(threshold):
                        order[n[0]] = j
                        n[0] = n[0] + 1

                # Bottom-up merge sort by descending score; taking the left run on a tie keeps it
                # stable, so equal scores stay in the order of their index.
                width[0] = 1
                while width[0] < n[0]:
                    start[0] = 0
                    while start[0] < n[0]:
                        middle = T.min(start[0] + width[0], n[0])
                        stop = T.min(start[0] + 2 * width[0], n[0])
                        left[0] = start[0]
                        right[0] = middle
                        for k in range(start[0], stop):
                            at[0] = 1
                            if right[0] < stop:
                                if left[0] == middle:
                                    at[0] = 0
                                else:
                                    if score[b, c, order[right[0]]] > score[b, c, order[left[0]]]:
                                        at[0] = 0
                            if at[0] == 1:
                                merged[k] = order[left[0]]
                                left[0] = left[0] + 1
                            else:
                                merged[k] = order[right[0]]
                                right[0] = right[0] + 1
                        start[0] = stop
                    for k in range(n[0]):
                        order[k] = merged[k]
                    width[0] = width[0] * 2

                counts[bc] = 0
                at[0] = 0
                while at[0] < n[0] and counts[bc] < max_selected:
                    candidate = order[at[0]]
                    keep[0] = 1
                    for k in range(counts[bc]):
                        if keep[0] == 1:
                            if overlaps(box, b, candidate, picked[bc, k]):
                                keep[0] = 0
                    if keep[0] == 1:
                        picked[bc, counts[bc]] = candidate
                        counts[bc] = counts[bc] + 1
                    at[0] = at[0] + 1

    return nms_select


def selected_shape(lists: int) -> tirx.PrimFunc:
    """``(counts[lists], shape[2])``: the shape ``[sum(counts), 3]`` of the result."""

    @T.prim_func(private=True, s_tir=True)
    def nms_shape(
        counts: T.Buffer((lists,), "int32"),
        shape: T.Buffer((2,), "int64"),
    ):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        # TVM asks every kernel of a Relax module for a root block.
        with T.sblock("root"):
            shape[0] = T.int64(0)
            shape[1] = T.int64(3)
            for i in range(lists):
                shape[0] = shape[0] + T.Cast("int64", counts[i])

    return nms_shape


def fill_indices(batch: int, classes: int, max_selected: int) -> tirx.PrimFunc:
    """``(picked, counts, out[m, 3])``: the lists one after the other, as batch, class, box."""

    @T.prim_func(private=True, s_tir=True)
    def nms_fill(
        picked: T.Buffer((batch * classes, max_selected), "int32"),
        counts: T.Buffer((batch * classes,), "int32"),
        out_handle: T.handle,
    ):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        m = T.int64()
        out = T.match_buffer(out_handle, (m, 3), "int64")
        # TVM asks every kernel of a Relax module for a root block.
        with T.sblock("root"):
            row = T.alloc_buffer((1,), "int64", scope="local")
            row[0] = T.int64(0)
            for bc in range(batch * classes):
                for k in range(counts[bc]):
                    out[row[0], 0] = T.Cast("int64", bc // classes)
                    out[row[0], 1] = T.Cast("int64", bc % classes)
                    out[row[0], 2] = T.Cast("int64", picked[bc, k])
                    row[0] = row[0] + T.int64(1)

    return nms_fill
