"""From a model to code, in phases that can be printed."""

from tvm_edge.compiler.driver import analyze, compile

__all__ = ["analyze", "compile"]
