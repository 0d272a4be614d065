"""Operators of ONNX Runtime's own domain, ``com.microsoft``, which its tools write.

Its quantisation tool, its transformer optimiser, and sessions that save the graph that they have
optimised (``SessionOptions.optimized_model_filepath``). Each is written out in ONNX's operators.
"""

from __future__ import annotations

from tvm_edge.ops.onnxruntime import (  # noqa: F401
    activations,
    attention,
    block_weights,
    channel_blocks,
    fused,
    integer_products,
    lstm,
    normalization,
    qlinear,
)

__all__: list[str] = []
