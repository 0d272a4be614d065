"""From an ONNX graph to scheduled kernels and to numbers, without the rest of the compiler."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")  # TVM's default, half the cores, is one here

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, tirx
from tvm.relax.backend import DispatchSortScan
from tvm.relax.frontend.onnx import from_onnx

from tvm_edge.devices import DeviceSpec
from tvm_edge.schedules.base import Scheduled
from tvm_edge.schedules.cpu import schedule

AVX512 = DeviceSpec(
    key="test/avx512",
    kind="cpu",
    name="AVX-512",
    cores=2,
    simd_bytes=64,
    vector_registers=32,
    l2_cache=1 << 20,
)
AVX2 = DeviceSpec(
    key="test/avx2", kind="cpu", name="AVX2", cores=4, simd_bytes=32, l2_cache=1 << 18
)
NEON = DeviceSpec(
    key="test/neon", kind="cpu", name="NEON", cores=4, vector_registers=32, l2_cache=1 << 18
)
SPECS = (AVX512, AVX2, NEON)

TOLERANCE = 1e-5
"""Of a tensor's largest value. A float32 sum of some thousand terms in another order differs by
about 1e-6; a wrong index differs by 1e-1."""

_transform = relax.transform
_FUSE = tvm.transform.Sequential(
    [
        _transform.DecomposeOpsForInference(),
        DispatchSortScan(),
        _transform.LegalizeOps(),
        _transform.AnnotateTIROpPattern(),
        _transform.FuseOps(),
        _transform.FuseTIR(),
        _transform.DeadCodeElimination(),
    ]
)
_LOWER = tvm.transform.Sequential(
    [
        _transform.RewriteDataflowReshape(),
        _transform.ToNonDataflow(),
        _transform.RemovePurityChecking(),
        _transform.CallTIRRewrite(),
        _transform.StaticPlanBlockMemory(),
        _transform.LowerAllocTensor(),
        _transform.KillAfterLastUse(),
        _transform.LowerRuntimeBuiltin(),
        _transform.ComputePrimValue(),
        _transform.VMShapeLower(),
        _transform.AttachGlobalSymbol(),
    ]
)


def target() -> tvm.target.Target:
    """This machine's CPU."""
    cpu = tvm.support.libinfo()  # noqa: F841
    return tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
