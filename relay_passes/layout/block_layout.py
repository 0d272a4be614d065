"""Blocked layouts: images as NCHW16c from one convolution to the next.

A convolution that reads and writes blocks of channels needs no shuffling of lanes
(:mod:`tvm_edge.schedules.blocked`). Operators between convolutions take blocks as they are where
they can; an image is packed where a convolution needs it and unpacked where somebody else reads
it, each at most once. Filters and constants are packed here, when the model is compiled.

On a CPU blocks are what kernels are best with. On a GPU they are what a plan says, and what tensor
cores multiply float16 in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.hardware import DeviceSpec
from tvm_edge.ops.movement import CONCAT
from tvm_edge.ops.registry import of_call
from tvm_edge.relay_passes.ir.expressions import (
    bindings_of,
    const,
    constant_of,
    lengths_of,
    typical_shape,
)
from tvm_edge.relay_passes.ir.locations import emit_at
from tvm_edge.relay_passes.ir.vdevices import vdevice_of
from tvm_edge.relay_passes.ir.workloads import conv_workload, int8_conv, transposed_conv
from tvm_edge.relay_passes.layout.choose_blocks import choose_blocked
from tvm_edge.relay_passes.layout.choose_tensor_blocks import choose_tensor_blocks
from tvm_edge.relay_passes.layout.cpu_convolution import CpuConvolutions
from tvm_edge.relay_passes.layout.gpu_convolution import gpu_conv, gpu_pool
from tvm_edge.relay_passes.layout.int8_convolution import blocked_call
from tvm_edge.relay_passes.layout.moved_channels import BlockedImage, MovedChannels
from tvm_edge.relay_passes.precision.stored_arithmetic import arithmetic_of, call_arithmetic
from tvm_edge.relay_passes.solvers.layout_graph import LayoutPlan, layout_graph
from tvm_edge.schedules.blocked import (
    filled,
    pack_constant,
    pack_image,
    repack_image,
    unpack_image,
)
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.gather_channels import gather_channels
from tvm_edge.schedules.gpu.pixel_pairs import as_pairs, pack_pairs, pair_filters
from tvm_edge.schedules.layouts import image_block

__all__ = ["BlockLayout"]

_LONG_MEAN = 1024
"""Pixels above which a mean is one of the means of lines: one sum of 184 x 184 numbers, rounded
after each of them, is wrong by 4e-4 of itself."""

_Rule = Callable[[relax.Call], "tuple[relax.Expr, int] | None"]


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
    ) -> None:
        self._spec = spec
        self._configs = configs or {}
        self._plan = plan

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if self._spec.lanes() == 1 and self._spec.has_cpu_cores:
            return mod
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                chosen, layouts = self._chosen(func)
                if chosen or self._spec.has_cpu_cores:
                    blocker = _Blocker(mod, chosen, layouts, self._spec, self._configs)
                    mod = blocker.blocked(gvar, func)
        return mod

    def _chosen(
        self, func: relax.Function
    ) -> tuple[dict[relax.Call, ConvConfig], dict[relax.Var, int]]:
        """The convolutions on blocks; the layout of each result, where that is planned."""
        if self._plan is not None:
            graph = layout_graph(func, self._spec)
            if graph.digest == self._plan.network:
                chosen = {graph.calls[i]: config for i, config in self._plan.configs.items()}
                of_vars = zip(graph.variables, self._plan.layouts, strict=True)
                layouts = {var: layout for var, layout in of_vars if var is not None}
                self._add_transposed(func, chosen, layouts)
                return chosen, layouts
        if not self._spec.has_cpu_cores:
            return choose_tensor_blocks(func, self._spec), {}
        return choose_blocked(func, self._spec, self._configs), {}

    def _add_transposed(
        self,
        func: relax.Function,
        chosen: dict[relax.Call, ConvConfig],
        layouts: dict[relax.Var, int],
    ) -> None:
        """Choose transposed convolutions, which a plan knows as operators of NCHW."""
        own = [b for b in bindings_of(func) if transposed_conv(b.value) is not None]
        if own and self._spec.has_cpu_cores:
            usual = choose_blocked(func, self._spec, self._configs)
            for binding in own:
                if binding.value in usual:
                    chosen[binding.value] = usual[binding.value]
                    del layouts[binding.var]


def _image_lengths(ty: relax.Type) -> tuple[Any, ...]:
    """Return the shape of an image, of which batch, lines and columns may be open."""
    lengths = lengths_of(ty)
    assert lengths is not None, "only images of known shapes have blocks"
    return lengths


def _is_pixel(size: Sequence[Any]) -> bool:
    """Return whether lines and columns are known to be one."""
    return all(isinstance(length, int) and length == 1 for length in size)


@mutator
class _Blocker(PyExprMutator):
    def __init__(
        self,
        mod: tvm.IRModule,
        chosen: Mapping[relax.Call, ConvConfig],
        layouts: Mapping[relax.Var, int],
        spec: DeviceSpec,
        configs: Mapping[ConvWorkload, ConvConfig],
    ) -> None:
        super().__init__(mod)
        self._chosen = chosen
        self._layouts = layouts
        self._spec = spec
        # Measured knobs of int8 convolutions; `None`: they have no kernel on blocks.
        self._int8 = configs if spec.has_cpu_cores and spec.dot_product else None
        self._bound: dict[relax.Var, relax.Expr] = {}
        self._result: relax.Var | None = None  # the one at hand
        self._planned: int | None = None  # its layout
        self._blocked: dict[relax.Var, BlockedImage] = {}
        self._repacked: dict[tuple[relax.Expr, int], BlockedImage] = {}  # in blocks of other sizes
        self._plain: dict[relax.Var, relax.Var] = {}
        self._convolutions = CpuConvolutions(self.builder_)
        self._moved = MovedChannels(self._blocked, self._concat_parts)
        self._rules: dict[str, _Rule] = {
            "relax.concat": self._concat,
            "relax.image.resize2d": self._resize2d,
            "relax.mean": self._mean,
            "relax.nn.avg_pool2d": self._pool2d,
            "relax.nn.conv2d": self._conv2d,
            "relax.nn.conv2d_transpose": self._conv2d_transpose,
            "relax.nn.max_pool2d": self._pool2d,
        }

    def blocked(self, gvar: tvm.ir.GlobalVar, func: relax.Function) -> tvm.IRModule:
        """The module with one function rewritten, and the kernels it calls.

        The builder's module must be asked for here: it is gone with the mutator.
        """
        self.builder_.update_func(gvar, self.visit_expr(func))
        return self.builder_.get()

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        # Variables of a dataflow end with it; results that leave it are plain.
        for images in (self._blocked, self._repacked, self._plain):
            images.clear()
        self._moved.forget()
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._bound[binding.var] = binding.value
        self._result = binding.var
        self._planned = self._layouts.get(binding.var)
        image = None if self._planned == 0 else self._rewrite(binding.value)
        if image is None:
            if self._planned != 0:
                self._moved.note(binding.var, binding.value)
            super().visit_var_binding_(binding)  # dead, and removed, if only blocks are read
            return
        value, channels = image
        blocked = BlockedImage(self._emit_as(binding.var, value), channels)
        self._blocked[binding.var] = blocked
        if not isinstance(binding.var, relax.DataflowVar):
            plain = self.builder_.emit_output(self._unpacked(blocked, binding.var.ty))
            self._plain[binding.var] = plain
            self.set_var_remap(binding.var, plain)

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        if op not in self._blocked:
            return super().visit_dataflow_var_(op)
        if op not in self._plain:
            plain = self._unpacked(self._blocked[op], op.ty)
            self._plain[op] = self.builder_.emit(plain, "unpacked")
        return self._plain[op]

    def _emit_as(self, like: relax.Var, value: relax.Expr) -> relax.Var:
        """Bind `value` to a variable at the location, and of the very name, of `like`."""
        value = self.builder_.normalize(value)
        var = relax.DataflowVar(like.name, value.ty, like.span)
        self.builder_.emit_normalized(relax.VarBinding(var, value))
        return var

    def _packed(self, expr: relax.Expr, block: int) -> BlockedImage:
        """An image in blocks, packed now if it is not yet."""
        known = self._image(expr)
        if known is not None and known.block == block:
            return known
        if (expr, block) in self._repacked:
            return self._repacked[expr, block]
        batch, channels, *size = _image_lengths(expr.ty)
        if known is not None and block > 1 and (self._layouts or expr not in self._plain):
            value = self._in_other_blocks(known, block)
        elif block == 1 or (_is_pixel(size) and channels % block == 0):
            value = relax.op.reshape(
                self.visit_expr(expr), (batch, channels // block, *size, block)
            )
        else:
            value = self.visit_expr(expr)
            value = self.builder_.call_te(pack_image, value, block, primfunc_name_hint="pack")
        image = BlockedImage(self.builder_.emit(value, "packed"), channels)
        # What follows takes these blocks, unless a plan says what it takes.
        follows = known is None and block > 1 and not self._layouts
        if follows and isinstance(expr, relax.Var):
            self._blocked[expr] = image
            if isinstance(expr, relax.DataflowVar):
                own = self.get_var_remap(expr)
                self._plain[expr] = expr if own is None else own  # bound as it was
        else:
            self._repacked[expr, block] = image
        return image

    def _in_other_blocks(self, image: BlockedImage, block: int) -> relax.Expr:
        """The blocks of an image in another size."""
        batch, _, *size, before = _image_lengths(image.var.ty)
        if _is_pixel(size) and image.channels % before == image.channels % block == 0:
            return relax.op.reshape(image.var, (batch, image.channels // block, *size, block))
        value = self.builder_.call_te(
            repack_image, image.var, image.channels, block, primfunc_name_hint="repack"
        )
        blocks = filled(image.channels, block) // block
        value = self.builder_.emit(value, "repacked")
        return relax.op.reshape(value, (batch, blocks, *size, block))

    def _operand(self, expr: relax.Expr) -> BlockedImage | None:
        """The image in the blocks that are planned for the result, or else in those it has."""
        if self._planned:
            return self._packed(expr, self._planned)
        return self._image(expr)

    def _image(self, expr: relax.Expr) -> BlockedImage | None:
        """The blocks of an image that has them; picked channels are copied together now."""
        picked = self._moved.of_image(expr)
        if picked is None:
            return self._blocked.get(expr)
        if expr not in self._blocked:
            sources = list(dict.fromkeys(channel.image for channel in picked))
            picks = [(sources.index(channel.image), channel.number) for channel in picked]
            shapes = [_image_lengths(source.ty) for source in sources]
            dtype = str(expr.ty.dtype)
            name = self.builder_.add_func(gather_channels(shapes, picks, dtype), "gather_channels")
            block = shapes[0][-1]
            shape = (shapes[0][0], filled(len(picks), block) // block, *shapes[0][2:])
            call = relax.call_tir(name, sources, relax.TensorType(shape, dtype))
            self._blocked[expr] = BlockedImage(self.builder_.emit(call, "gathered"), len(picks))
        return self._blocked[expr]

    def _concat_parts(self, call: relax.Call) -> list[relax.Expr] | None:
        """The images that are concatenated along channels."""
        parts = call.args[0]
        if isinstance(parts, relax.Var):
            parts = self.lookup_binding(parts)
        if not isinstance(parts, relax.Tuple) or int(call.attrs.axis) % 4 != 1:
            return None
        return list(parts.fields)

    def _unpacked(self, image: BlockedImage, ty: relax.Type) -> relax.Expr:
        shape = _image_lengths(ty)
        if _is_pixel(shape[2:]) and image.channels % image.block == 0:
            return relax.op.reshape(image.var, shape)
        return self.builder_.call_te(
            unpack_image, image.var, image.channels, primfunc_name_hint="unpack"
        )

    def _rewrite(self, value: relax.Expr) -> tuple[relax.Expr, int] | None:
        """`value` over blocked images, and its channels; ``None`` if it stays as it is."""
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        shape = lengths_of(value.ty)
        if shape is None or len(shape) != 4 or not isinstance(shape[1], int):
            return None
        if any(isinstance(length, int) and not length for length in shape):
            return None
        arithmetic = arithmetic_of(value, self.builder_.get())
        if arithmetic:
            return self._arithmetic(arithmetic, value)
        blocks = of_call(value).blocks
        if blocks == "unary":
            return self._unary(value)
        if blocks == "binary":
            return self._binary(value, shape)
        rule = self._rules.get(str(value.op.name))
        return None if rule is None else rule(value)

    def _conv2d(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        whole = None if self._int8 is None else int8_conv(call, self._bound)
        if whole is not None and whole.block and self._int8 is not None:
            blocks = self._packed(whole.image, whole.block).var
            measured = self._int8.get(whole.workload)
            knobs = "" if measured is None else measured.knobs
            return blocked_call(whole, self.builder_, blocks, knobs), whole.workload.filters
        config = self._chosen.get(call)
        if config is None:
            return None
        found = conv_workload(call, ("float32", "float16"), open_too=True)
        assert found is not None, "only convolutions with a workload are chosen"
        workload, weights = found
        halves = str(call.ty.dtype) == "float16"
        depth = config.block if halves else image_block(workload, config.block, self._spec)
        pairs = as_pairs(workload) if config.algorithm == "tensor" else None
        if pairs is not None and self._image(call.args[0]) is None:
            value = self.visit_expr(call.args[0])
            value = self.builder_.call_te(pack_pairs, value, primfunc_name_hint="pack_pairs")
            own = pair_filters(weights, workload)
            packed = self.builder_.emit(value, "packed")
            return gpu_conv(self.builder_, packed, pairs, own, config), workload.filters
        image = self._packed(call.args[0], depth)
        if not self._spec.has_cpu_cores:
            result = gpu_conv(self.builder_, image.var, workload, weights, config)
            return result, workload.filters
        result = self._convolutions.call(image.var, workload, weights, config, depth)
        return result, workload.filters

    def _conv2d_transpose(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        found, config = transposed_conv(call), self._chosen.get(call)
        if found is None or config is None:
            return None
        conv, weights = found
        depth = image_block(conv.workload, config.block, self._spec)
        image = self._packed(call.args[0], depth).var
        made = self._convolutions.transposed(image, conv, weights, config.block, depth)
        return made, weights.shape[1]

    def _unary(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        constants = [constant_of(arg) for arg in call.args[1:]]
        if any(value is not None and value.size > 1 for value in constants):
            return None  # one for each channel
        image = self._operand(call.args[0])
        if image is None:
            return None
        return relax.Call(call.op, [image.var, *call.args[1:]], call.attrs), image.channels

    def _binary(
        self, call: relax.Call, shape: tuple[int | tirx.Expr, ...]
    ) -> tuple[relax.Expr, int] | None:
        values = [constant_of(arg) for arg in call.args]
        images = [
            self._operand(arg) if value is None else None
            for arg, value in zip(call.args, values, strict=True)
        ]
        if not any(images):
            return None
        known = [image for image in images if image is not None]
        if len(known) + sum(value is not None for value in values) < 2:
            return None
        if any(image.channels != shape[1] for image in known):
            return None  # an image of one channel, broadcast
        block = self._planned or known[0].block
        operands = [
            self._packed(arg, block).var
            if value is None
            else const(pack_constant(value, block), str(value.dtype))
            for arg, value in zip(call.args, values, strict=True)
        ]
        return relax.Call(call.op, operands, call.attrs), shape[1]

    def _arithmetic(self, operator: str, call: relax.Call) -> tuple[relax.Expr, int] | None:
        """Make a kernel of images in blocks of one of images and constants."""
        args = list(call.args[1].fields)
        values = [constant_of(arg) for arg in args]
        images = [
            self._image(arg) if value is None else None
            for arg, value in zip(args, values, strict=True)
        ]
        known = [image for image in images if image is not None]
        if not known or len(known) + sum(value is not None for value in values) < len(args):
            return None
        first, shape = known[0], _image_lengths(call.ty)
        if any(image.channels != shape[1] or image.block != first.block for image in known):
            return None  # an image of one channel, broadcast
        operands = [
            const(pack_constant(value, first.block), str(value.dtype))
            if value is not None
            else self._packed(arg, first.block).var
            for arg, value in zip(args, values, strict=True)
        ]
        blocks = filled(first.channels, first.block) // first.block
        result = call_arithmetic(
            self.builder_,
            operator,
            operands,
            (shape[0], blocks, *shape[2:], first.block),
            vdevice_of(call.ty),
        )
        return result, first.channels

    def _pool2d(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        image = self._operand(call.args[0])
        if image is None or call.attrs.layout != "NCHW" or call.attrs.out_layout != "NCHW":
            return None
        attrs = call.attrs
        if not self._spec.has_cpu_cores and str(call.ty.dtype) == "float16":
            pool = gpu_pool(self.builder_, image.var, call)
            if pool is not None:
                return pool, image.channels
        make = relax.op.nn.max_pool2d if "max" in call.op.name else relax.op.nn.avg_pool2d
        result = make(
            image.var,
            list(attrs.pool_size),
            list(attrs.strides),
            list(attrs.padding),
            list(attrs.dilation),
            bool(attrs.ceil_mode),
            bool(attrs.count_include_pad),
            layout=f"NCHW{image.block}c",
        )
        return result, image.channels

    def _mean(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        image = self._operand(call.args[0])
        axes = [int(axis) % 4 for axis in call.attrs.axis or []]
        if image is None or sorted(axes) != [2, 3] or not call.attrs.keepdims:
            return None
        shape = typical_shape(image.var.ty)
        assert shape is not None, "only images of known shapes have blocks"
        height, width = shape[2:4]
        if height * width <= _LONG_MEAN:
            return relax.op.mean(image.var, [2, 3], keepdims=True), image.channels
        lines = relax.op.mean(image.var, [3], keepdims=True)
        lines = emit_at(self.builder_, lines, self._result)
        return relax.op.mean(lines, [2], keepdims=True), image.channels

    def _concat(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        parts = self._concat_parts(call)
        if parts is None or any(part in self._moved for part in parts):
            return None
        images = [self._blocked.get(part) for part in parts]
        first = images[0]
        if not self._planned and (first is None or None in images):
            return None
        block = self._planned or (first.block if first is not None else 0)
        sizes = [_image_lengths(part.ty)[1] for part in parts]
        if any(size % block for size in sizes[:-1]):
            return None
        known = [self._packed(part, block) for part in parts]
        channels = sum(image.channels for image in known)
        if not self._spec.has_cpu_cores:
            return relax.op.concat([image.var for image in known], axis=1), channels
        result = self.builder_.call_te(
            lambda *parts: topi.concatenate(parts, 1),
            *(image.var for image in known),
            primfunc_name_hint="concatenate",
            primfunc_attrs={CONCAT: True},
        )
        return result, channels

    def _resize2d(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        image = self._operand(call.args[0])
        if image is None or call.attrs.layout != "NCHW":
            return None
        attrs = call.attrs
        result = relax.op.image.resize2d(
            image.var,
            call.args[1],
            [float(r) for r in attrs.roi] or None,
            layout=f"NCHW{image.block}c",
            method=attrs.method,
            coordinate_transformation_mode=attrs.coordinate_transformation_mode,
            rounding_method=attrs.rounding_method,
            cubic_alpha=float(attrs.cubic_alpha),
            cubic_exclude=int(attrs.cubic_exclude),
            extrapolation_value=float(attrs.extrapolation_value),
        )
        return result, image.channels
