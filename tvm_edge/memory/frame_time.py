"""Latency of a frame by a plan, from the report of its kernels and the devices' data sheets.

Good to a factor of two or three, as :mod:`~tvm_edge.hardware.roofline`;
plans of one model are off by the same factor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tvm_edge.hardware import DeviceSpec, ResolvedTarget
from tvm_edge.hardware.roofline import copy_us, roofline_us
from tvm_edge.report import CompileReport, KernelInfo

__all__ = ["FrameTime", "frame_time"]

# What Winograd's algorithm makes of the share of the peak, as for layouts.
_WINOGRAD = 1.6

_CONVOLUTIONS, _DENSE = "convolutions", "fully connected layers"


@dataclass(frozen=True)
class FrameTime:
    """Predicted times of a frame.

    Attributes
    ----------
    terms : dict of (str, str) to float
        Seconds by device and by what it does; copies are the GPU's.
    same_cores : bool
        Whether the devices are the same cores, as an OpenCL runtime of the CPU and the CPU are:
        while one of them works, the other waits.
    """

    terms: dict[tuple[str, str], float]
    same_cores: bool = False

    @property
    def stages(self) -> dict[str, float]:
        """Seconds by device."""
        found: dict[str, float] = defaultdict(float)
        for (device, _), seconds in self.terms.items():
            found[device] += seconds
        return dict(found)

    @property
    def seconds(self) -> float:
        """Seconds of a frame, with one frame after another."""
        return sum(self.terms.values())

    @property
    def bound(self) -> str:
        """The term that dominates."""
        (device, what), most = max(
            self.terms.items(), key=lambda term: term[1], default=(("", ""), 0.0)
        )
        return f"{what} on {device}, {most / self.seconds:.0%}" if most else ""

    @property
    def pipelined(self) -> float:
        """Seconds of a frame where each device works on another frame, as far as they are two."""
        return self.seconds if self.same_cores else max(self.stages.values(), default=0.0)

    @property
    def pipelined_bound(self) -> str:
        """The device that the other one waits for."""
        if self.same_cores:
            return self.bound
        stages = self.stages
        return f"all on {max(stages, key=lambda device: stages[device])}" if stages else ""


def frame_time(report: CompileReport, resolved: ResolvedTarget) -> FrameTime:
    """Predict it for what a compilation decided.

    Parameters
    ----------
    report : CompileReport
    resolved : ResolvedTarget
        What it was compiled for.
    """
    specs = {resolved.cpu.kind: resolved.cpu.spec, resolved.kind: resolved.spec}
    types = {placement.operator: placement.op_type for placement in report.placements}
    terms: dict[tuple[str, str], float] = defaultdict(float)
    seconds = []
    for kernel in report.kernels:
        what = _what([types.get(operator, "") for operator in kernel.operators])
        seconds.append(_kernel_us(kernel, what, report, specs[kernel.device]) / 1e6)
        terms[kernel.device, what] += seconds[-1]
    for copy in report.copies:
        us = copy_us(copy["bytes"], resolved.spec, bool(copy["zero_copy"]))
        terms[resolved.kind, "copies"] += us / 1e6
    # A device that is the CPU reads weights where they are mapped.
    copies = resolved.host is not None and not resolved.spec.on_cpu
    if copies and (reading := _reading(report.kernels, seconds, resolved)):
        terms[resolved.kind, "reading weights"] += reading
    return FrameTime(dict(terms), resolved.spec.on_cpu)


def _reading(
    kernels: Sequence[KernelInfo], seconds: Sequence[float], resolved: ResolvedTarget
) -> float:
    """Seconds that a GPU waits for streamed weights.

    With two windows the weights of a kernel are copied while the streaming kernel before it, and
    all kernels in between, calculate. Before the first of a frame comes the last of the frame
    before.
    """
    on_gpu = [
        (kernel.streamed, own)
        for kernel, own in zip(kernels, seconds, strict=True)
        if kernel.device == resolved.kind
    ]
    readers = [place for place, (streamed, _) in enumerate(on_gpu) if streamed]
    waited = 0.0
    for number, place in enumerate(readers):
        copy = copy_us(on_gpu[place][0], resolved.spec) / 1e6
        if "write" in resolved.shared:
            before = readers[number - 1]
            between = on_gpu[before:place] if number else on_gpu[before:] + on_gpu[:place]
            copy = max(0.0, copy - sum(own for _, own in between))
        waited += copy
    return waited


def _what(types: list[str]) -> str:
    if any(op_type.startswith(("Conv", "nn.conv")) for op_type in types):
        return _CONVOLUTIONS
    if any(op_type in ("Gemm", "MatMul", "matmul") for op_type in types):
        return _DENSE
    return "other operators"


def _kernel_us(kernel: KernelInfo, what: str, report: CompileReport, spec: DeviceSpec) -> float:
    work = kernel.flops
    if any("Winograd" in report.layouts.get(operator, "") for operator in kernel.operators):
        work /= _WINOGRAD
    moved = kernel.bytes + 2 * kernel.workspace  # written, and read again
    return roofline_us(work, moved, spec, contraction=what in (_CONVOLUTIONS, _DENSE))
