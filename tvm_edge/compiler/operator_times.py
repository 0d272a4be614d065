"""How long operators take on a GPU and on the CPU beside it, from shapes and data sheets alone.

A roofline: the longer of arithmetic over the share of the peak that kernels reach, and of bytes
over bandwidth, and what each launch costs. Good to a factor of two or three, which is what
:func:`~tvm_edge.compiler.auto_placement.cheaper_on_cpu` allows for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tvm import relax

from tvm_edge.frontend.relax_costs import call_cost
from tvm_edge.hardware import DeviceSpec
from tvm_edge.ops import (
    BOX_NMS,
    EFFICIENT_NMS,
    MULTIBOX_TRANSFORM_LOC,
    NON_MAX_SUPPRESSION,
    PROPOSAL,
    ROI_ALIGN,
    ROI_POOL,
    SCAN,
    SEGMENTED_ARGSORT,
    UNIQUE,
)
from tvm_edge.relay_passes.ir.expressions import is_call, static_shape

__all__ = ["copy_us", "kernel_us", "operator_us", "roofline_us"]


@dataclass(frozen=True)
class _Search:
    """An operator whose loops depend on data, as `benchmarks/RESULTS.md` has measured it.

    Attributes
    ----------
    launches : int
        Of its GPU kernels; a CPU's kernel has half as many parallel loops.
    gpu, cpu : float
        Operations for each element of the operands, at the full peak of the device; on a CPU of
        one core, as far as there are no independent rows.
    """

    launches: int
    gpu: float
    cpu: float


# From argsort, top-k, scan and class-wise NMS on an H200 and on two cores with AVX-512.
_SORT = _Search(8, 2000.0, 1000.0)
_SUPPRESS = _Search(25, 200.0, 40.0)
_SEARCHES: Mapping[str, _Search] = {
    **dict.fromkeys((SEGMENTED_ARGSORT, "relax.argsort", "relax.sort", "relax.topk"), _SORT),
    **dict.fromkeys((UNIQUE, "relax.unique"), _SORT),
    **dict.fromkeys((NON_MAX_SUPPRESSION, BOX_NMS, EFFICIENT_NMS, PROPOSAL), _SUPPRESS),
    MULTIBOX_TRANSFORM_LOC: _Search(4, 30.0, 60.0),
    **dict.fromkeys((SCAN, "relax.cumsum", "relax.cumprod"), _Search(3, 20.0, 100.0)),
    "relax.nonzero": _Search(4, 100.0, 200.0),
    # A GPU searches well where it needs no other thread; TVM's kernels do not.
    "relax.bucketize": _Search(1, 500.0, 50.0),
    "relax.multinomial_from_uniform": _Search(1, 5000.0, 50.0),
}

# Operations for each element of the result, where a definition's count says too little.
_SAMPLES: Mapping[str, float] = {
    ROI_ALIGN: 200.0,
    ROI_POOL: 200.0,
    "relax.image.grid_sample": 50.0,
    "relax.image.resize2d": 20.0,
}

# Shares of the peak: of convolutions and matrix products, and of everything else.
_DENSE: Mapping[str, float] = {"gpu": 0.3, "cpu": 0.7}
_OTHER = 0.1

# What stands in for data sheets that nobody has.
_LANES, _CLOCK_GHZ, _CORE_GBS, _SHARED_GBS = 64, 1.0, 12.0, 15.0
_CPU_LAUNCH_US = 2.0

# A kernel that is written for GPUs on an OpenCL device that is a CPU: its work-items are a loop.
# From NonMaxSuppression on pocl; and what pocl takes for a network, of what the same schedules take
# by LLVM (`benchmarks/RESULTS.md`).
_LOOPED_US = 200.0
_OPENCL_ON_CPU = 1.15

_CONTRACTIONS = frozenset(
    ("relax.matmul", *(f"relax.nn.conv{n}d{t}" for n in (1, 2, 3) for t in ("", "_transpose")))
)


def operator_us(call: relax.Call, spec: DeviceSpec) -> float:
    """Microseconds of an operator by itself on a device.

    Parameters
    ----------
    call : relax.Call
        Of an operator that is not legalised.
    spec : DeviceSpec
        A CPU's, or a GPU's.
    """
    search = _SEARCHES.get(_name(call))
    if search is not None:
        return _search_us(call, search, spec)
    cost = call_cost(call)
    nbytes = (cost.input_bytes or 0) + (cost.output_bytes or 0) + cost.weight_bytes
    work = float(cost.flops or 0)
    if _name(call) in _SAMPLES:
        work = _SAMPLES[_name(call)] * (cost.output_bytes or 0) / 4
    contraction = is_call(call, *_CONTRACTIONS) and not _depthwise(call)
    return roofline_us(work, nbytes, spec, contraction=contraction)


def roofline_us(work: float, nbytes: float, spec: DeviceSpec, *, contraction: bool) -> float:
    """Microseconds of a kernel that does `work` operations and moves `nbytes`.

    `contraction` says whether it is a convolution or a matrix product, which come nearer to the
    peak.
    """
    share = _DENSE[_kind(spec)] if contraction else _OTHER
    slower = _OPENCL_ON_CPU if spec.on_cpu else 1.0
    return slower * kernel_us(work / share, nbytes, spec)


def kernel_us(work: float, nbytes: float, spec: DeviceSpec, launches: int = 1) -> float:
    """Microseconds of `work` operations at the peak of a device, and of moving `nbytes`."""
    return max(work / _peak(spec), nbytes / _bandwidth(spec)) / 1e3 + launches * _launch(spec)


def copy_us(nbytes: float, gpu: DeviceSpec, shared: bool = False) -> float:
    """Microseconds that a tensor takes between a GPU and its host.

    In `shared` memory nothing is copied, and what is left is to wait for the other side.
    """
    return gpu.copy_latency_us + (0.0 if shared else nbytes / gpu.copy_gbs / 1e3)


def _search_us(call: relax.Call, search: _Search, spec: DeviceSpec) -> float:
    """As :func:`operator_us`, for an operator whose definition gives no count."""
    shapes = [static_shape(arg.ty) for arg in call.args if isinstance(arg, relax.Var)]
    known = [shape for shape in shapes if shape]
    elements = sum(math.prod(shape) for shape in known)
    if spec.on_cpu:
        looped = search.launches * _LOOPED_US
        return looped + kernel_us(search.gpu * elements, 4 * elements, spec, search.launches)
    if spec.launches_grids:
        return kernel_us(search.gpu * elements, 4 * elements, spec, search.launches)
    rows = max((math.prod(shape[:-1]) for shape in known), default=1)
    # One core's peak, as often as there are rows for cores.
    serial = max(spec.cores, 1) / min(max(rows, 1), max(spec.cores, 1))
    return kernel_us(search.cpu * elements * serial, 4 * elements, spec, -(-search.launches // 2))


def _kind(spec: DeviceSpec) -> str:
    return "cpu" if spec.has_cpu_cores else "gpu"


def _launch(spec: DeviceSpec) -> float:
    return _CPU_LAUNCH_US if spec.has_cpu_cores else spec.launch_us


def _peak(spec: DeviceSpec) -> float:
    """Operations in a nanosecond."""
    return spec.peak_gflops or max(spec.cores, 1) * (spec.alus or _LANES) * 2 * _CLOCK_GHZ


def _bandwidth(spec: DeviceSpec) -> float:
    """Bytes in a nanosecond."""
    if spec.bandwidth_gbs:
        return spec.bandwidth_gbs
    return _SHARED_GBS if spec.unified_memory else _CORE_GBS * max(spec.cores, 1)


def _depthwise(call: relax.Call) -> bool:
    groups = int(getattr(call.attrs, "groups", 1))
    shape = static_shape(call.args[1].ty)
    return groups > 1 and shape is not None and len(shape) > 1 and shape[1] == 1


def _name(call: relax.Call) -> str:
    return str(getattr(call.op, "name", ""))
