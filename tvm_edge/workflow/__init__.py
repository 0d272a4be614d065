"""From a trained file to a deployed one: compare, quantise, preprocess."""

from __future__ import annotations

from tvm_edge.workflow.box_labels import BoxLabels
from tvm_edge.workflow.compare_nodes import compare
from tvm_edge.workflow.comparison import Comparison, NodeError, OutputBits, PassTrial
from tvm_edge.workflow.postprocess import Label, boxes_in_picture, top_labels
from tvm_edge.workflow.quantization_loss import AveragePrecision, LayerLoss, OutputLoss, Quantized
from tvm_edge.workflow.quantize_model import quantize

__all__ = [
    "AveragePrecision",
    "BoxLabels",
    "Comparison",
    "Label",
    "LayerLoss",
    "NodeError",
    "OutputBits",
    "OutputLoss",
    "PassTrial",
    "Quantized",
    "boxes_in_picture",
    "compare",
    "quantize",
    "top_labels",
]
