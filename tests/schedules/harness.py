"""From an ONNX graph to scheduled kernels and to numbers, without the rest of the compiler."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")  # TVM's default is half the cores: one here

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
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
