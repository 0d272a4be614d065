"""Lower operators that are several kernels, once it is known where they run.

Vision operators, sorts, scans; convolutions by Winograd's algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.hardware import DeviceSpec, ResolvedTarget
from tvm_edge.ops import (
    BOX_NMS,
    EFFICIENT_NMS,
    MULTIBOX_PRIOR,
    MULTIBOX_TRANSFORM_LOC,
    NON_MAX_SUPPRESSION,
    PROPOSAL,
    ROI_ALIGN,
    ROI_POOL,
    SCAN,
    SEGMENTED_ARGSORT,
    SSD_DECODE,
    UNIQUE,
    YOLO_DECODE,
)
from tvm_edge.relay_passes.ir.vdevices import vdevice_of
from tvm_edge.relay_passes.lower.kernel_site import KernelSite
from tvm_edge.relay_passes.lower.lower_boxes import (
    lower_multibox_prior,
    lower_multibox_transform_loc,
    lower_ssd_decode,
    lower_valid_counts,
    lower_yolo_decode,
)
from tvm_edge.relay_passes.lower.lower_concat import lower_concat
from tvm_edge.relay_passes.lower.lower_conv2d import lower_conv2d
from tvm_edge.relay_passes.lower.lower_nms import (
    lower_box_nms,
    lower_efficient_nms,
    lower_nms,
    lower_proposal,
)
from tvm_edge.relay_passes.lower.lower_nonzero import lower_nonzero
from tvm_edge.relay_passes.lower.lower_resize import lower_grid_sample, lower_resize2d
from tvm_edge.relay_passes.lower.lower_roi import (
    lower_relax_roi_align,
    lower_relax_roi_pool,
    lower_roi_align,
    lower_roi_pool,
)
from tvm_edge.relay_passes.lower.lower_scan import lower_cumprod, lower_cumsum, lower_scan
from tvm_edge.relay_passes.lower.lower_scatter import lower_scatter_elements, lower_scatter_nd
from tvm_edge.relay_passes.lower.lower_sort import (
    lower_argsort,
    lower_segmented_argsort,
    lower_sort,
    lower_top_k,
    lower_unique,
)
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = ["LowerVision"]

_LOWERINGS: Mapping[str, Callable[[KernelSite, relax.Call], relax.Expr]] = {
    BOX_NMS: lower_box_nms,
    EFFICIENT_NMS: lower_efficient_nms,
    MULTIBOX_PRIOR: lower_multibox_prior,
    MULTIBOX_TRANSFORM_LOC: lower_multibox_transform_loc,
    NON_MAX_SUPPRESSION: lower_nms,
    PROPOSAL: lower_proposal,
    ROI_ALIGN: lower_roi_align,
    ROI_POOL: lower_roi_pool,
    SCAN: lower_scan,
    SEGMENTED_ARGSORT: lower_segmented_argsort,
    SSD_DECODE: lower_ssd_decode,
    UNIQUE: lower_unique,
    YOLO_DECODE: lower_yolo_decode,
    "relax.argsort": lower_argsort,
    "relax.concat": lower_concat,
    "relax.cumprod": lower_cumprod,
    "relax.cumsum": lower_cumsum,
    "relax.image.grid_sample": lower_grid_sample,
    "relax.image.resize2d": lower_resize2d,
    "relax.nn.conv2d": lower_conv2d,
    "relax.nonzero": lower_nonzero,
    "relax.scatter_elements": lower_scatter_elements,
    "relax.scatter_nd": lower_scatter_nd,
    "relax.sort": lower_sort,
    "relax.topk": lower_top_k,
    "relax.vision.get_valid_counts": lower_valid_counts,
    "relax.vision.roi_align": lower_relax_roi_align,
    "relax.vision.roi_pool": lower_relax_roi_pool,
}


@tvm.transform.module_pass(opt_level=0, name="LowerVision")
class LowerVision:
    """Replace composite operators by calls of their kernels.

    Parameters
    ----------
    resolved : ResolvedTarget
        The devices, which decide tiles and loops.
    precision : str
        Of products on the first one.
    configs : mapping of ConvWorkload to ConvConfig
        Measured algorithms and knobs of convolutions on that one.
    chooser : DeviceSpec, optional
        What algorithms are chosen for, where that is not the first device.
    """

    def __init__(
        self,
        resolved: ResolvedTarget,
        precision: str = "float32",
        configs: Mapping[ConvWorkload, ConvConfig] | None = None,
        chooser: DeviceSpec | None = None,
    ) -> None:
        self.resolved, self.precision, self.configs = resolved, precision, configs or {}
        self.chooser = chooser

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        lowerer = _Lowerer(mod, self)
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                lowerer.builder_.update_func(gvar, lowerer.visit_expr(func))
        return lowerer.builder_.get()


@mutator
class _Lowerer(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, options: Any) -> None:
        super().__init__(mod)
        self._options = options

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        op = super().visit_call_(op)
        if not isinstance(op.op, tvm.ir.Op) or op.op.name not in _LOWERINGS:
            return op
        resolved = self._options.resolved
        # A constant is on no device.
        placed = (vdevice_of(arg.ty) for arg in op.args)
        device = next((found for found in placed if found is not None), None)
        on_host = device is not None and device.target.kind.name != resolved.kind
        spec = (resolved.cpu if on_host else resolved).spec
        site = KernelSite(self.builder_, device, spec)
        if not on_host:
            options = self._options
            site = replace(
                site,
                precision=options.precision,
                configs=options.configs,
                chooser=options.chooser,
            )
        return _LOWERINGS[op.op.name](site, op)
