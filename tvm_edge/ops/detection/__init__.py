"""Operators of object detection: anchors, decoding of boxes, suppression."""

from __future__ import annotations

from tvm_edge.ops.detection.anchors import MULTIBOX_PRIOR, multibox_prior
from tvm_edge.ops.detection.box_nms import BOX_NMS, box_nms
from tvm_edge.ops.detection.decode import SSD_DECODE, YOLO_DECODE, ssd_decode, yolo_decode
from tvm_edge.ops.detection.efficient_nms import EFFICIENT_NMS, efficient_nms
from tvm_edge.ops.detection.multibox import (
    MULTIBOX_TRANSFORM_LOC,
    multibox_detection,
    multibox_transform_loc,
)
from tvm_edge.ops.detection.nms import NON_MAX_SUPPRESSION, non_max_suppression
from tvm_edge.ops.detection.proposal import PROPOSAL, proposal
from tvm_edge.ops.registry import Fitness, register, relax_names

__all__ = [
    "BOX_NMS",
    "EFFICIENT_NMS",
    "MULTIBOX_PRIOR",
    "MULTIBOX_TRANSFORM_LOC",
    "NON_MAX_SUPPRESSION",
    "PROPOSAL",
    "SSD_DECODE",
    "YOLO_DECODE",
    "box_nms",
    "efficient_nms",
    "multibox_detection",
    "multibox_prior",
    "multibox_transform_loc",
    "non_max_suppression",
    "proposal",
    "ssd_decode",
    "yolo_decode",
]

register(
    *relax_names(
        "vision.all_class_non_max_suppression vision.multibox_transform_loc "
        "vision.non_max_suppression"
    ),
    gpu=Fitness(impossible="TVM's form of it has no GPU kernel"),
)
