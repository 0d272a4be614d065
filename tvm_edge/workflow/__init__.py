"""From a trained file to a deployed one: compare, quantise, preprocess."""

from __future__ import annotations

from tvm_edge.workflow.compare_nodes import compare
from tvm_edge.workflow.comparison import Comparison, NodeError, OutputBits, PassTrial
from tvm_edge.workflow.postprocess import Label, boxes_in_picture, top_labels
from tvm_edge.workflow.quantize_model import LayerLoss, OutputLoss, Quantized, quantize

__all__ = [
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
