"""Check that no kernel reads or writes a tensor of another device.

TVM does not: ``R.matmul`` of operands on two devices is accepted, and the kernel then reads an
address of one device on the other.
"""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_edge.relay_passes.ir.expressions import all_bindings
from tvm_edge.relay_passes.ir.vdevices import (
    is_same,
    kernel_of,
    reading_device,
    vdevice_of,
    vdevices_of,
)

__all__ = ["VerifyPlacement"]


@tvm.transform.module_pass(opt_level=0, name="VerifyPlacement")
class VerifyPlacement:
    """Raise ``RuntimeError`` where a kernel and one of its tensors are on different devices."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        devices = vdevices_of(mod)
        if devices:
            for binding in all_bindings(mod["main"].body):
                _check(mod, binding.value, devices)
        return mod


def _check(mod: tvm.IRModule, value: relax.Expr, devices: list[relax.VDevice]) -> None:
    if kernel_of(mod, value) is None:
        return
    device = devices[reading_device(mod, value)]
    arguments = value.args[1]
    fields = arguments.fields if isinstance(arguments, relax.Tuple) else [arguments]
    tensors = [arg for arg in fields if isinstance(arg, relax.Var | relax.Call)]
    tensors = [arg for arg in tensors if isinstance(arg.ty, relax.TensorType)]
    for name, ty in [*((str(arg), arg.ty) for arg in tensors), ("its result", value.ty)]:
        other = vdevice_of(ty) or devices[0]
        if not is_same(other, device):
            raise RuntimeError(
                f"the kernel {value.args[0].name_hint} runs on {device.target.kind.name} and "
                f"{name} is on {other.target.kind.name}: the placement has lost a copy"
            )
