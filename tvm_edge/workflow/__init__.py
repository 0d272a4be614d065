"""From a trained file to a deployed one: compare, quantise, preprocess."""

from __future__ import annotations

from tvm_edge.workflow.compare_nodes import compare
from tvm_edge.workflow.comparison import Comparison, NodeError, OutputBits, PassTrial
from tvm_edge.workflow.postprocess import Label, boxes_in_picture, top_labels

__all__ = [
    "Comparison",
    "Label",
    "NodeError",
    "OutputBits",
    "PassTrial",
    "boxes_in_picture",
    "compare",
    "top_labels",
]
