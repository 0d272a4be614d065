"""Blocked layouts: images as NCHW16c from one convolution to the next.

A convolution that reads and writes blocks of channels needs no shuffling of lanes
(:mod:`tvm_edge.schedules.blocked`). Operators between convolutions take blocks as they are where
they can; an image is packed where a convolution needs it and unpacked where somebody else reads
it, each at most once. Filters and constants are packed here, when the model is compiled.

On a CPU blocks are what kernels are best with. On a GPU they are what a plan says, and what tensor
cores multiply in.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.hardware import DeviceSpec
from tvm_edge.relay_passes.ir.expressions import bindings_of
from tvm_edge.relay_passes.ir.workloads import FLOATS, conv_workload, int8_conv, transposed_conv
from tvm_edge.relay_passes.layout.blocked_images import BlockedImages
from tvm_edge.relay_passes.layout.blocked_operators import BlockedOperators
from tvm_edge.relay_passes.layout.choose_blocks import choose_blocked, multiplied
from tvm_edge.relay_passes.layout.choose_tensor_blocks import choose_tensor_blocks
from tvm_edge.relay_passes.layout.cpu_convolution import CpuConvolutions
from tvm_edge.relay_passes.layout.gpu_convolution import gpu_conv
from tvm_edge.relay_passes.layout.int8_convolution import blocked_call
from tvm_edge.relay_passes.layout.moved_channels import BlockedImage
from tvm_edge.relay_passes.solvers.layout_graph import LayoutPlan, layout_graph
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.pixel_cells import (
    as_cells,
    cell_filters,
    pack_cells,
)
from tvm_edge.schedules.layouts import image_block

__all__ = ["BlockLayout"]

_OPAQUE = 8  # TVM's pattern of what is fused with nothing


@tvm.transform.module_pass(opt_level=0, name="BlockLayout")
class BlockLayout:
    """Give convolutions of static shape and constant filters a blocked layout.

    Parameters
    ----------
    spec : DeviceSpec
        A CPU, whose blocks have the lanes of its vector registers, or a GPU.
    configs : mapping of ConvWorkload to ConvConfig, optional
        Algorithm and knobs of convolutions, instead of the heuristic's.
    plan : LayoutPlan, optional
        The layout of each operator of ``main``, in place of what follows from its operands, and
        the configurations of those convolutions that have a choice.
    tf32 : bool
        Whether tensor cores may round float32.

    Examples
    --------
    ``relu(conv2d(x, w))`` of 64 channels becomes, with ``pack``, ``conv2d_blocked`` and ``unpack``
    kernels and `w_packed` a constant::

        x_blocked = pack(x)                                 # [1, 64, H, W] as [1, 4, H, W, 16]
        y = unpack(relu(conv2d_blocked(x_blocked, w_packed)))
    """

    def __init__(
        self,
        spec: DeviceSpec,
        configs: Mapping[ConvWorkload, ConvConfig] | None = None,
        plan: LayoutPlan | None = None,
        *,
        tf32: bool = False,
        float16: bool = False,
    ) -> None:
        self._spec = spec
        self._tf32 = tf32
        self._float16 = float16
        self._configs = configs or {}
        self._plan = plan

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if self._spec.lanes() == 1 and self._spec.has_cpu_cores:
            return mod
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                chosen, layouts = self._chosen(func, mod)
                if chosen or self._spec.has_cpu_cores:
                    blocker = _Blocker(
                        mod, chosen, layouts, self._spec, self._configs, self._float16
                    )
                    mod = blocker.blocked(gvar, func)
        return mod

    def _chosen(
        self, func: relax.Function, mod: tvm.IRModule
    ) -> tuple[dict[relax.Call, ConvConfig], dict[relax.Var, int]]:
        """The convolutions on blocks; the layout of each result, where that is planned."""
        if self._plan is not None:
            graph = layout_graph(func, self._spec)
            if graph.digest == self._plan.network:
                chosen = {graph.calls[i]: config for i, config in self._plan.configs.items()}
                of_vars = zip(graph.variables, self._plan.layouts, strict=True)
                layouts = {var: layout for var, layout in of_vars if var is not None}
                self._add_transposed(func, mod, chosen, layouts)
                return chosen, layouts
        if not self._spec.has_cpu_cores:
            return choose_tensor_blocks(func, self._spec, self._configs, tf32=self._tf32), {}
        return choose_blocked(func, mod, self._spec, self._configs, float16=self._float16), {}

    def _add_transposed(
        self,
        func: relax.Function,
        mod: tvm.IRModule,
        chosen: dict[relax.Call, ConvConfig],
        layouts: dict[relax.Var, int],
    ) -> None:
        """Choose transposed convolutions, which a plan knows as operators of NCHW."""
        own = [b for b in bindings_of(func) if transposed_conv(b.value) is not None]
        if own and self._spec.has_cpu_cores:
            usual = choose_blocked(func, mod, self._spec, self._configs, float16=self._float16)
            for binding in own:
                if binding.value in usual:
                    chosen[binding.value] = usual[binding.value]
                    del layouts[binding.var]


@mutator
class _Blocker(PyExprMutator):
    def __init__(
        self,
        mod: tvm.IRModule,
        chosen: Mapping[relax.Call, ConvConfig],
        layouts: Mapping[relax.Var, int],
        spec: DeviceSpec,
        configs: Mapping[ConvWorkload, ConvConfig],
        float16: bool,
    ) -> None:
        super().__init__(mod)
        self._float16 = float16
        self._chosen = chosen
        self._layouts = layouts
        self._spec = spec
        # Measured knobs of int8 convolutions; `None`: they have no kernel on blocks.
        self._int8 = configs if spec.has_cpu_cores and spec.dot_product else None
        self._bound: dict[relax.Var, relax.Expr] = {}
        self._images = BlockedImages(
            self.builder_,
            self.visit_expr,
            self.get_var_remap,
            planned=bool(layouts),
            shuffles=spec.kind == "cpu",
        )
        convolutions = {
            "relax.nn.conv2d": self._conv2d,
            "relax.nn.conv2d_transpose": self._conv2d_transpose,
        }
        self._operators = BlockedOperators(self.builder_, self._images, spec, convolutions)
        self._convolutions = CpuConvolutions(self.builder_, spec)

    def blocked(self, gvar: tvm.ir.GlobalVar, func: relax.Function) -> tvm.IRModule:
        """The module with one function rewritten, and the kernels it calls.

        The builder's module must be asked for here: it is gone with the mutator.
        """
        self.builder_.update_func(gvar, self.visit_expr(func))
        return self.builder_.get()

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        self._images.forget()  # results that leave a dataflow are plain
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._bound[binding.var] = binding.value
        planned = self._layouts.get(binding.var)
        image = None
        if planned != 0:
            image = self._operators.rewrite(binding.var, binding.value, planned)
        if image is None:
            if planned != 0:
                self._images.moved.note(binding.var, binding.value)
            super().visit_var_binding_(binding)  # dead, and removed, if only blocks are read
            return
        value, channels = image
        blocked = BlockedImage(self._emit_as(binding.var, value), channels)
        self._images.add(binding.var, blocked)
        if not isinstance(binding.var, relax.DataflowVar):
            self.set_var_remap(binding.var, self._images.output(binding.var))

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        if self._images.known(op) is None:
            return super().visit_dataflow_var_(op)
        return self._images.plain(op)

    def _emit_as(self, like: relax.Var, value: relax.Expr) -> relax.Var:
        """Bind `value` to a variable at the location, and of the very name, of `like`."""
        value = self.builder_.normalize(value)
        var = relax.DataflowVar(like.name, value.ty, like.span)
        self.builder_.emit_normalized(relax.VarBinding(var, value))
        return var

    def _conv2d(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        whole = None if self._int8 is None else int8_conv(call, self._bound)
        if whole is not None and whole.block and self._int8 is not None:
            blocks = self._images.packed(whole.image, whole.block).var
            measured = self._int8.get(whole.workload)
            knobs = "" if measured is None else measured.knobs
            return blocked_call(
                whole, self.builder_, blocks, self._spec, knobs
            ), whole.workload.filters
        config = self._chosen.get(call)
        if config is None:
            return None
        if config.algorithm in ("tensor", "winograd", "window") and not self._spec.has_cpu_cores:
            return self._in_units(call, config)
        found = conv_workload(call, FLOATS, open_too=True)
        assert found is not None, "only convolutions with a workload are chosen"
        weights = found[1]
        workload = multiplied(*found, self._float16)
        depth = image_block(workload, config.block, self._spec)
        image = self._images.packed(call.args[0], depth)
        if not self._spec.has_cpu_cores:
            result = gpu_conv(self.builder_, image.var, workload, weights, config)
            return result, workload.filters
        result = self._convolutions.call(image.var, workload, weights, config, depth)
        return result, workload.filters

    def _in_units(self, call: relax.Call, config: ConvConfig) -> tuple[relax.Expr, int]:
        """Call a kernel on blocks of 16 bytes, which tensor cores multiply."""
        found = conv_workload(call, ("float16", "float32"))
        zero, source = 0, call.args[0]
        if found is None:
            whole = int8_conv(call, self._bound)
            assert whole is not None, "only convolutions with a workload are chosen"
            found, zero, source = (whole.workload, whole.weights), whole.zero, whole.image
        workload, weights = found
        cells = None
        if config.algorithm == "tensor":
            cells = as_cells(workload, str(weights.dtype))
        if cells is not None and self._images.image(source) is None:
            value = self.visit_expr(source)
            # Windows have a pixel several times: it is quantised once, by a kernel of its own.
            alone = cells.kernel == (1, 1) and str(weights.dtype) == "int8"
            value = self.builder_.call_te(
                lambda pixels: pack_cells(pixels, workload, zero),
                value,
                primfunc_name_hint="pack_cells",
                primfunc_attrs={"op_pattern": _OPAQUE} if alone else None,
            )
            own = cell_filters(weights, workload)
            packed = self.builder_.emit(value, "packed")
            return gpu_conv(self.builder_, packed, cells, own, config, zero), workload.filters
        image = self._images.packed(source, config.block)
        result = gpu_conv(self.builder_, image.var, workload, weights, config, zero)
        return result, workload.filters

    def _conv2d_transpose(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        found, config = transposed_conv(call), self._chosen.get(call)
        if found is None or config is None:
            return None
        conv, weights = found
        workload = multiplied(conv.workload, weights, self._float16)
        depth = image_block(workload, config.block, self._spec)
        image = self._images.packed(call.args[0], depth).var
        made = self._convolutions.transposed(image, conv, weights, config.block, depth)
        return made, weights.shape[1]
