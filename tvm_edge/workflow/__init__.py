"""From a trained file to a deployed one: compare, quantise, preprocess."""

from __future__ import annotations

from tvm_edge.workflow.compare_nodes import compare
from tvm_edge.workflow.comparison import Comparison, NodeError, OutputBits, PassTrial

__all__ = ["Comparison", "NodeError", "OutputBits", "PassTrial", "compare"]
