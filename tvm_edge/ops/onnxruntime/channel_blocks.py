"""Refusal of images in channel blocks, which ONNX Runtime lays out for one CPU."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tvm_edge.ops.converter import Attributes
from tvm_edge.ops.registry import register

__all__: list[str] = []

_DOMAIN = "com.microsoft.nchwc"


def _refuse(
    _bb: relax.BlockBuilder, _inputs: Sequence[relax.Expr], _attrs: Attributes
) -> relax.Expr:
    raise NotImplementedError(
        "ONNX Runtime optimised this file for the channel blocks of one CPU; save it with "
        "graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_EXTENDED or below"
    )


register(
    *(
        f"{_DOMAIN}.{name}"
        for name in (
            "AveragePool",
            "Conv",
            "GlobalAveragePool",
            "GlobalMaxPool",
            "MaxPool",
            "ReorderInput",
            "ReorderOutput",
            "Upsample",
        )
    ),
    convert=_refuse,
)
