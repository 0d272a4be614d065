"""From scheduled kernels to CUDA C: TVM's own pipeline, with what its generator needs behind it."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.s_tir.pipeline import default_s_tir_pipeline

from tvm_edge.lowering.cuda_casts import NameConvertedVectors

__all__ = ["CUDA", "register"]

CUDA = "tvm_edge.cuda"
"""Name of the pipeline, for ``relax.build(tir_pipeline=...)``."""


def register() -> None:
    """Let TVM know the pipeline by its name; more than once does no harm."""
    tirx.compilation_pipeline.register_tir_pipeline(CUDA, _pipeline)


def _pipeline() -> tuple[object, object, object]:
    passes, finalize_host, finalize_device = default_s_tir_pipeline()

    def finalize() -> tvm.transform.Pass:
        return tvm.transform.Sequential([finalize_device(), NameConvertedVectors()])

    return passes, finalize_host, finalize
