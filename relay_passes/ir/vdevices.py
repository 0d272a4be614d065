"""Virtual devices of a module: which there are, and which one an instruction runs on."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS

__all__ = [
    "is_same",
    "kernel_of",
    "on_vdevice",
    "reading_device",
    "set_vdevices",
    "vdevice_of",
    "vdevices_of",
]


def set_vdevices(mod: tvm.IRModule, targets: Sequence[tvm.target.Target]) -> list[relax.VDevice]:
    """Give a module one virtual device for each target; the virtual machine numbers them so.

    All uses must share these objects: TVM compares virtual devices by identity.
    """
    devices = [relax.VDevice(target, 0, "global") for target in targets]
    mod.update_global_info("vdevice", devices)
    return vdevices_of(mod)


def vdevices_of(mod: tvm.IRModule) -> list[relax.VDevice]:
    """The virtual devices of a module in order; empty for a module on one device."""
    return list(mod.global_infos.get("vdevice", []))


def is_same(a: relax.VDevice, b: relax.VDevice) -> bool:
    """Return whether two virtual devices are one object; TVM's ``same_as`` and ``==`` recurse."""
    return bool(tvm_ffi.Object.same_as(a, b))


def vdevice_of(ty: relax.Type) -> relax.VDevice | None:
    """The virtual device in a type; for a tuple that of its first item that has one."""
    if isinstance(ty, relax.TensorType):
        return ty.vdevice
    if isinstance(ty, relax.TupleType):
        return next((v for v in map(vdevice_of, ty.fields) if v is not None), None)
    return None


def on_vdevice(ty: relax.Type, device: relax.VDevice) -> relax.Type:
    """A type on a virtual device."""
    if isinstance(ty, relax.TensorType):
        if ty.shape is None:
            return relax.TensorType(None, ty.dtype, device, ty.ndim)
        return relax.TensorType(ty.shape, ty.dtype, device)
    if isinstance(ty, relax.TupleType):
        return relax.TupleType([on_vdevice(field, device) for field in ty.fields])
    return ty


def kernel_of(mod: tvm.IRModule, value: relax.Expr) -> tirx.PrimFunc | None:
    """The kernel that an expression calls."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    if value.op.name not in KERNEL_CALLS:
        return None
    return mod[value.args[0]]


def reading_device(mod: tvm.IRModule, value: relax.Expr) -> int:
    """Position of the virtual device on which an expression reads its tensors.

    A kernel says it by its target, and one without is the first device's.
    """
    devices = vdevices_of(mod)
    kernel = kernel_of(mod, value)
    if kernel is not None:
        target = kernel.attrs.get("target") if kernel.attrs is not None else None
        kinds = [str(device.target.kind.name) for device in devices]
        return 0 if target is None or not kinds else kinds.index(str(target.kind.name))
    device = vdevice_of(value.ty)
    places = [i for i, other in enumerate(devices) if device is not None and is_same(other, device)]
    return places[0] if places else 0
