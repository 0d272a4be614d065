"""Composite operators that keep their name and attributes until kernels are chosen for them."""

from tvm_edge.ops.anchors import MULTIBOX_PRIOR, multibox_prior
from tvm_edge.ops.decode import (
    MULTIBOX_TRANSFORM_LOC,
    SSD_DECODE,
    YOLO_DECODE,
    multibox_transform_loc,
    ssd_decode,
    yolo_decode,
)
from tvm_edge.ops.detections import (
    EFFICIENT_NMS,
    PROPOSAL,
    efficient_nms,
    multibox_detection,
    proposal,
)
from tvm_edge.ops.nms import BOX_NMS, NON_MAX_SUPPRESSION, box_nms, non_max_suppression
from tvm_edge.ops.quantize import (
    DEQUANTIZE,
    QUANTIZE,
    QUANTIZED_ADD,
    dequantize,
    quantize,
    quantized_add,
)
from tvm_edge.ops.roi import ROI_ALIGN, ROI_POOL, roi_align, roi_pool
from tvm_edge.ops.scan import SCAN, scan
from tvm_edge.ops.sort import SEGMENTED_ARGSORT, segmented_argsort
from tvm_edge.ops.unique import UNIQUE, unique

__all__ = [
    "BOX_NMS",
    "DEQUANTIZE",
    "EFFICIENT_NMS",
    "MULTIBOX_PRIOR",
    "MULTIBOX_TRANSFORM_LOC",
    "NON_MAX_SUPPRESSION",
    "PROPOSAL",
    "QUANTIZE",
    "QUANTIZED_ADD",
    "ROI_ALIGN",
    "ROI_POOL",
    "SCAN",
    "SEGMENTED_ARGSORT",
    "SSD_DECODE",
    "UNIQUE",
    "YOLO_DECODE",
    "box_nms",
    "dequantize",
    "efficient_nms",
    "multibox_detection",
    "multibox_prior",
    "multibox_transform_loc",
    "non_max_suppression",
    "proposal",
    "quantize",
    "quantized_add",
    "roi_align",
    "roi_pool",
    "scan",
    "segmented_argsort",
    "ssd_decode",
    "unique",
    "yolo_decode",
]
