"""The footprint of a model: what counts against a budget, part by part, before it is built.

A process that loads an artifact has weights for the CPU as clean pages of the file, which count for
nothing. Those for a GPU are in the memory of that GPU, and the process then drops its own pages. So
no weight is there twice, whether or not host and device share memory. Tensors that both use where
they share it are planned once (:mod:`tvm_edge.relay_passes.instructions.write_on_host`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import tvm
from tvm import relax, tirx

from tvm_edge.hardware import ResolvedTarget
from tvm_edge.host import allowed_cpus
from tvm_edge.lowering.deep_stack import map_on_deep_stacks
from tvm_edge.memory.floor import floor_of
from tvm_edge.memory.scratch import Scratch, kept, scratch_of
from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, all_bindings, is_call, lengths_of
from tvm_edge.relay_passes.ir.locations import kernel_of
from tvm_edge.relay_passes.memory.lift_weights import Weight
from tvm_edge.relay_passes.memory.stream_weights import streamed_constant
from tvm_edge.report import SplitInfo
from tvm_edge.runtime.device_plan import STREAMED
from tvm_edge.runtime.devices import is_host
from tvm_edge.schedules.base import workspace_of
from tvm_edge.schedules.typical import evaluate

__all__ = [
    "STREAM",
    "call_bytes",
    "kernel_scratch",
    "launch_code",
    "mapped",
    "pinned",
    "rounding",
    "tensor_bytes",
    "type_bytes",
    "uploaded",
    "weights_of_devices",
    "windows",
    "workspace",
]

STREAM = "streamed"
"""In place of a device, for weights that are read part by part in every run."""

_ALIGNMENT = 128  # of blocks of the OpenCL runtime
_PINNED = 32 << 20  # two blocks that parts of weights come by (native/csrc/pinned_copies.cc)


def weights_of_devices(weights: Iterable[Weight], kinds: Sequence[str]) -> dict[str, int]:
    """Return bytes of the weights by the device that reads them, or :data:`STREAM`.

    Parameters
    ----------
    weights : iterable of Weight
    kinds : sequence of str
        Of the devices.
    """
    found = dict.fromkeys(kinds, 0)
    for weight in weights:
        place = STREAM if weight.device == STREAMED else kinds[weight.device]
        found[place] = found.get(place, 0) + _weight_bytes(weight)
    return found


def mapped(weights: Mapping[str, int], resolved: ResolvedTarget) -> int:
    """Return bytes of the weights that stay pages of the artifact.

    The CPU's, those that are streamed, and those of an OpenCL device that is the CPU, where the
    runtime lends them to it.
    """
    stay = {resolved.cpu.kind, STREAM}
    if resolved.spec.on_cpu:
        stay.add(resolved.kind)
    return sum(nbytes for device, nbytes in weights.items() if device in stay)


def kernel_scratch(
    mod: tvm.IRModule, resolved: ResolvedTarget, lengths: Mapping[str, int]
) -> dict[str, Scratch]:
    """Return allocations of kernels of the CPU, by name; kernels without any are left out.

    Parameters
    ----------
    mod : IRModule
        Scheduled kernels.
    resolved : ResolvedTarget
    lengths : mapping of str to int
        Open lengths that count, by name.
    """
    kernels = [
        (str(gvar.name_hint), func)
        for gvar, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and is_host(_kind(func, resolved))
    ]

    def measured(kernel: tuple[str, tirx.PrimFunc]) -> tuple[str, Scratch]:
        return kernel[0], scratch_of(kernel[1], resolved.cpu.target, lengths)

    done = dict(map_on_deep_stacks(measured, kernels, len(allowed_cpus())))
    return {name: done[name] for name, _ in kernels if done[name] != Scratch()}


def workspace(scratch: Mapping[str, Scratch], resolved: ResolvedTarget) -> int:
    """Return bytes that the runtime keeps of scratch space, with a thread on each core."""
    return kept(scratch.values(), max(resolved.cpu.spec.cores, 1))


def windows(splits: Iterable[SplitInfo], resolved: ResolvedTarget) -> list[int]:
    """Return bytes of each window on a GPU that parts of streamed weights pass through.

    There are two where the host may write the device's memory at any time, else one
    (``native/csrc/weight_stream.cc``). A CPU reads parts where they are mapped, also as an
    OpenCL device.
    """
    if resolved.spec.on_cpu:
        return []
    parts = [split.part_bytes for split in splits if not is_host(split.device)]
    return [max(parts)] * (2 if "write" in resolved.shared else 1) if parts else []


def pinned(windows: Iterable[int], resolved: ResolvedTarget) -> int:
    """Return bytes of pinned host memory that copies to windows go through."""
    return _PINNED if resolved.facts.pins_memory and any(windows) else 0


def uploaded(weights: Iterable[Weight], kinds: Sequence[str]) -> list[int]:
    """Return bytes of each weight on a GPU; arguments as of :func:`weights_of_devices`."""
    return [
        _weight_bytes(weight)
        for weight in weights
        if weight.device != STREAMED and not is_host(kinds[weight.device])
    ]


def _weight_bytes(weight: Weight) -> int:
    return tensor_bytes(weight.value.shape, str(weight.value.dtype))


def rounding(sizes: Iterable[int], resolved: ResolvedTarget) -> int:
    """Return bytes by which blocks of tensors on the device are larger than the tensors.

    In a runtime that pools memory, a block is at most an eighth larger than what was asked for.
    Where the device is the CPU nobody touches the rest.
    """
    if not resolved.facts.pools_memory or resolved.spec.on_cpu:
        return 0
    return sum(_block(size) - size for size in sizes)


def _block(nbytes: int) -> int:
    """Size of a block, as ``SizeClass`` of ``opencl/csrc/memory.cc`` has it."""
    step = _ALIGNMENT
    while step * 16 < nbytes:
        step *= 2
    return max(step, -(-nbytes // step) * step)


def launch_code(devices: Iterable[str], resolved: ResolvedTarget) -> tuple[int, int]:
    """Return bytes of programs, and of the process without a model.

    Parameters
    ----------
    devices : iterable of str
        Of each of the library's kernels.
    """
    floor = floor_of(resolved)
    counts = Counter(devices)
    others = counts.total() - counts[resolved.cpu.kind]
    return counts.total() * floor.kernel + others * floor.device_kernel, floor.process


def call_bytes(
    mod: tvm.IRModule, scratch: Mapping[str, Scratch], threads: int
) -> dict[int, tuple[int, int, int, int]]:
    """Return bytes of each kernel of ``main``: weights, results, workspace, streamed weights.

    Parameters
    ----------
    mod : IRModule
        Scheduled kernels that get their workspace; weights still are constants.
    scratch : mapping of str to Scratch
        By name of the kernel.
    threads : int
    """
    found = {}
    parts: dict[relax.Var, relax.Expr] = {}
    for binding in all_bindings(mod["main"].body):
        call = binding.value
        part = streamed_constant(call)
        if part is not None:
            parts[binding.var] = part
        number = kernel_of(binding.var)
        if number is None or not is_call(call, *KERNEL_CALLS):
            continue
        kernel = call.args[0]
        workspace_bytes = sum(
            tensor_bytes(b.shape, str(b.dtype)) for b in workspace_of(mod[kernel])
        )
        own = scratch.get(str(kernel.name_hint), Scratch()).total(threads)
        given = call.args[1].fields if isinstance(call.args[1], relax.Tuple) else []
        kept = [arg for arg in given if isinstance(arg, tvm.ir.GenericConst)]
        asked = [parts[arg] for arg in given if isinstance(arg, relax.Var) and arg in parts]
        weights, streamed = (
            sum(tensor_bytes(c.value.shape, str(c.value.dtype)) for c in each)
            for each in (kept, asked)
        )
        results = type_bytes(call.ty) - workspace_bytes
        found[number] = weights + streamed, results, workspace_bytes + own, streamed
    return found


def tensor_bytes(shape: Sequence[object], dtype: str) -> int:
    """Return bytes of a tensor; 0 if a dimension is not a number."""
    count = 1
    for length in shape:
        if not isinstance(length, int | tirx.IntImm):
            return 0
        count *= int(length)
    return count * int(tvm.DataType(dtype).itemsize)


def type_bytes(ty: relax.Type, lengths: Mapping[str, int] | None = None) -> int:
    """Return bytes of a tensor, or of those of a tuple, where open dimensions are this long.

    Those with a length that is not among `lengths`, which are by name, do not count.
    """
    if isinstance(ty, relax.TupleType):
        return sum(type_bytes(part, lengths) for part in ty.fields)
    shape = lengths_of(ty)
    if shape is None:
        return 0
    known = [evaluate(length, lengths or {}) for length in shape]
    return 0 if None in known else tensor_bytes(known, str(ty.dtype))


def _kind(func: tirx.PrimFunc, resolved: ResolvedTarget) -> str:
    own = func.attrs.get("target") if func.attrs is not None else None
    return resolved.kind if own is None else str(own.kind.name)
