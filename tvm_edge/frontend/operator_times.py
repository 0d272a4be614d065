"""Microseconds of operators on a GPU and on the CPU beside it, from shapes and data sheets alone.

Good to a factor of two or three, which is what
:func:`~tvm_edge.compiler.auto_placement.cheaper_on_cpu` allows for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tvm import relax

from tvm_edge.frontend.relax_costs import call_cost
from tvm_edge.hardware import DeviceSpec
from tvm_edge.hardware.roofline import kernel_us, roofline_us
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

__all__ = ["operator_us"]


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

# A kernel that is written for GPUs on an OpenCL device that is a CPU: its work-items are a loop.
# From NonMaxSuppression on pocl (`benchmarks/RESULTS.md`).
_LOOPED_US = 200.0

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


def _search_us(call: relax.Call, search: _Search, spec: DeviceSpec) -> float:
    """Return :func:`operator_us` for an operator whose definition gives no count."""
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


def _depthwise(call: relax.Call) -> bool:
    groups = int(getattr(call.attrs, "groups", 1))
    shape = static_shape(call.args[1].ty)
    return groups > 1 and shape is not None and len(shape) > 1 and shape[1] == 1


def _name(call: relax.Call) -> str:
    return str(getattr(call.op, "name", ""))
