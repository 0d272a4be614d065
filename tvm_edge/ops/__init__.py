"""Operators, a family in each module, with all that the compiler knows of them.

:mod:`tvm_edge.ops.registry` says what there is to declare. The functions exported here make
composite operators of Relax: they keep name and attributes until kernels are chosen for them.
"""

# To import a family is to declare its operators.
from tvm_edge.ops import (  # noqa: F401
    classical,
    control,
    convolution,
    elementwise,
    loops,
    mel_weights,
    movement,
    ngrams,
    normalization,
    onnxruntime,
    pooling,
    products,
    recurrent,
    reductions,
    resize,
    sampling,
    shapes,
    signal,
    training,
    types,
)
from tvm_edge.ops.detection import (
    BOX_NMS,
    EFFICIENT_NMS,
    MULTIBOX_PRIOR,
    MULTIBOX_TRANSFORM_LOC,
    NON_MAX_SUPPRESSION,
    PROPOSAL,
    SSD_DECODE,
    YOLO_DECODE,
    box_nms,
    efficient_nms,
    multibox_detection,
    multibox_prior,
    multibox_transform_loc,
    non_max_suppression,
    proposal,
    ssd_decode,
    yolo_decode,
)
from tvm_edge.ops.quantization import (
    BYTE_TABLE,
    DEQUANTIZE,
    QUANTIZE,
    QUANTIZED_ADD,
    byte_table,
    dequantize,
    quantize,
    quantized_add,
)
from tvm_edge.ops.roi import ROI_ALIGN, ROI_POOL, roi_align, roi_pool
from tvm_edge.ops.scan import SCAN, scan
from tvm_edge.ops.sorting import SEGMENTED_ARGSORT, UNIQUE, segmented_argsort, unique

__all__ = [
    "BOX_NMS",
    "BYTE_TABLE",
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
    "byte_table",
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
