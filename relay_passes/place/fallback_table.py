"""Which operators perform on a GPU, by kind of device: what ``fallback="list"`` goes by.

ICPP'19 (§3.1.2) keeps a list of operators that are known to perform and sends all others to the
CPU, those that nobody has looked at among them. :data:`PERFORMING` is that list. It has most of
Relax, as these passes come with kernels for what GPUs are bad at by themselves: sorts, scans,
suppression (``benchmarks/RESULTS.md`` has their figures); what works on each element by itself is
listed without a figure. To add an operator, build its kernel, measure it on a device of the kind
and write its name down; a test holds that each that TVM has is listed or left out with a note.

The list goes by no traits of a single device. A device without local memory, and one that is a CPU,
has schedules of its own; a type that a device does not calculate in is the policy's ``lacking``.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm_edge.ops import (
    BOX_NMS,
    DEQUANTIZE,
    EFFICIENT_NMS,
    MULTIBOX_PRIOR,
    MULTIBOX_TRANSFORM_LOC,
    NON_MAX_SUPPRESSION,
    PROPOSAL,
    QUANTIZE,
    QUANTIZED_ADD,
    ROI_ALIGN,
    ROI_POOL,
    SCAN,
    SEGMENTED_ARGSORT,
    SSD_DECODE,
    UNIQUE,
    YOLO_DECODE,
)

__all__ = ["IMPOSSIBLE", "LEFT_OUT", "PERFORMING", "SHAPE_OPERATORS", "STATIC", "why_left_out"]


def _relax(names: str) -> frozenset[str]:
    return frozenset(f"relax.{name}" for name in names.split())


# Convolutions, products and windows, scheduled in `schedules/gpu` or by rules for reductions.
_NETWORKS = _relax(
    "matmul einsum outer nn.attention nn.attention_bias nn.attention_var_len nn.conv1d "
    "nn.conv1d_transpose nn.conv2d nn.conv2d_transpose nn.conv3d nn.conv3d_transpose nn.avg_pool1d "
    "nn.avg_pool2d nn.avg_pool3d nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.adaptive_avg_pool1d "
    "nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d nn.batch_norm nn.group_norm nn.instance_norm "
    "nn.layer_norm nn.rms_norm nn.softmax nn.log_softmax nn.cross_entropy_with_logits nn.nll_loss"
)
# A work-item for each element of the result.
_ELEMENTWISE = _relax(
    "abs acos acosh add asin asinh astype atan atan2 atanh bitwise_and bitwise_not bitwise_or "
    "bitwise_xor ceil clip cos cosh dequantize divide equal erf exp floor floor_divide floor_mod "
    "greater greater_equal isfinite isinf isnan left_shift less less_equal log log_add_exp "
    "logical_and logical_not logical_or logical_xor maximum minimum mod multiply negative "
    "not_equal power quantize right_shift round rsqrt sigmoid sign sin sinh sqrt square subtract "
    "tan tanh trunc where nn.dropout nn.gelu nn.gelu_tanh nn.leakyrelu nn.prelu nn.relu nn.selu "
    "nn.silu nn.softplus"
) | {DEQUANTIZE, QUANTIZE, QUANTIZED_ADD}
_REDUCTIONS = _relax(
    "argmax argmin max mean min prod std sum variance collapse_sum_like collapse_sum_to"
)
# What moves elements, makes them from nothing, or is a view.
_MOVES = _relax(
    "arange broadcast_to concat expand_dims eye eye_like flatten flip full full_like "
    "gather_elements gather_nd hamming_window index_put index_tensor layout_transform meshgrid "
    "nn.batch_flatten nn.pad nn.pixel_shuffle one_hot ones ones_like permute_dims repeat reshape "
    "reverse_sequence scatter_elements scatter_nd size slice_scatter split squeeze stack "
    "strided_slice take tile tril triu zeros zeros_like image.affine_grid image.grid_sample "
    "image.resize2d image.resize3d"
)
# Searches with kernels of `schedules/vision`, which cooperate in each step.
_VISION = _relax(
    "argsort cumprod cumsum nonzero sort topk vision.get_valid_counts vision.roi_align "
    "vision.roi_pool"
) | {
    BOX_NMS,
    EFFICIENT_NMS,
    MULTIBOX_PRIOR,
    MULTIBOX_TRANSFORM_LOC,
    NON_MAX_SUPPRESSION,
    PROPOSAL,
    ROI_ALIGN,
    ROI_POOL,
    SCAN,
    SEGMENTED_ARGSORT,
    SSD_DECODE,
    YOLO_DECODE,
}
# Calls of kernels and functions that a Relax module brings along: they are where it puts them.
_CALLS = _relax("call_tir call_tir_inplace call_pure_packed call_dps_packed call_inplace_packed")

_BOTH = _NETWORKS | _ELEMENTWISE | _REDUCTIONS | _MOVES | _VISION | _CALLS

PERFORMING: Mapping[str, frozenset[str]] = {
    # Both share their schedules; an operator that performs on one kind alone goes to its line.
    "opencl": _BOTH,
    "cuda": _BOTH,
}
"""By kind of device the operators that perform on it."""

LEFT_OUT: Mapping[str, str] = {
    **dict.fromkeys(
        _relax("bucketize multinomial_from_uniform"),
        "it searches, in a kernel of TVM's that does so step by step in each work-item",
    ),
    **dict.fromkeys(
        _relax(
            "grad.avg_pool2d_backward grad.max_pool2d_backward grad.nll_loss_backward "
            "grad.take_backward"
        ),
        "it is of training, for which nothing here is made",
    ),
}
"""Operators that a GPU would run and that are in no list, and why."""

IMPOSSIBLE: Mapping[str, str] = {
    UNIQUE: "the length of its result depends on data",
    "relax.unique": "the length of its result depends on data",
    "relax.dynamic_strided_slice": "the shape of its result depends on data",
    "relax.median": "TVM's form of it has no GPU kernel",
    "relax.vision.all_class_non_max_suppression": "TVM's form of it has no GPU kernel",
    "relax.vision.multibox_transform_loc": "TVM's form of it has no GPU kernel",
    "relax.vision.non_max_suppression": "TVM's form of it has no GPU kernel",
}
"""Operators without a GPU kernel, and why."""

STATIC = _relax(
    "argsort cumprod cumsum nonzero scatter_elements scatter_nd sort topk vision.get_valid_counts"
) | {MULTIBOX_TRANSFORM_LOC, NON_MAX_SUPPRESSION, SCAN, SEGMENTED_ARGSORT}
"""Operators whose GPU kernels are written for one shape."""

SHAPE_OPERATORS = _relax("shape_of shape_to_tensor tensor_to_shape")
"""Operators that compute shapes, which the host needs."""


def why_left_out(name: str, kind: str) -> str:
    """Why the list sends an operator that a GPU of a kind could run to the CPU; empty if it does
    not.
    """
    if name in PERFORMING[kind]:
        return ""
    if name in LEFT_OUT:
        return f"left out of the list of operators that perform on {kind}: {LEFT_OUT[name]}"
    return f"not in the list of operators that are known to perform on {kind}"
