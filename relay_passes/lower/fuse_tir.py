"""Make one kernel of each group, for the device its parts are for."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.relax import transform

from tvm_edge.relay_passes.ir.vdevices import kernel_of, reading_device, vdevices_of

__all__ = ["FuseTIR"]


@tvm.transform.module_pass(opt_level=0, name="FuseTIR")
class FuseTIR:
    """TVM's ``FuseTIR``, which forgets the target that ``LegalizeOps`` gave to each part.

    Raises
    ------
    RuntimeError
        A group has kernels for two devices.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        targets = {
            gvar.name_hint: _target(mod, func)
            for gvar, func in mod.functions_items()
            if isinstance(func, relax.Function) and gvar.name_hint != "main"
        }
        mod = transform.FuseTIR()(mod)
        for gvar, func in mod.functions_items():
            target = targets.get(gvar.name_hint)
            if isinstance(func, tirx.PrimFunc) and target is not None:
                mod.update_func(gvar, func.with_attr("target", target))
        return mod


def _target(mod: tvm.IRModule, group: relax.Function) -> tvm.target.Target | None:
    """The target of a group's kernels; those without one are the first device's."""
    devices = vdevices_of(mod)
    found = {}
    for block in group.body.blocks:
        for binding in block.bindings:
            if devices and kernel_of(mod, binding.value) is not None:
                target = devices[reading_device(mod, binding.value)].target
                found[str(target.kind.name)] = target
    if len(found) > 1:
        raise RuntimeError(f"a fused group has kernels for several devices: {list(found)}")
    return next(iter(found.values()), None)
