"""Tuning: configurations of kernels, measured on the device and kept."""

from tvm_edge.tuning.driver import tune
from tvm_edge.tuning.options import LEVELS
from tvm_edge.tuning.result import GraphResult, GroupResult, Progress, TaskResult, TuneResult

__all__ = ["LEVELS", "GraphResult", "GroupResult", "Progress", "TaskResult", "TuneResult", "tune"]
