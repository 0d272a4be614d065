"""Blocked layouts for a CPU: images as NCHW16c from one convolution to the next.

A convolution that reads and writes blocks of channels needs no shuffling of lanes
(:mod:`tvm_edge.schedules.blocked`). Operators between convolutions take blocks as they are where
they can; an image is packed where a convolution needs it and unpacked where somebody else reads
it, each at most once. Filters and constants are packed here, when the model is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.hardware import DeviceSpec
from tvm_edge.relay_passes.concat_in_place import CONCAT
from tvm_edge.relay_passes.expressions import const, constant_of, is_call, static_shape
from tvm_edge.relay_passes.layout_choice import BINARY, UNARY, choose_blocked
from tvm_edge.relay_passes.workloads import conv_workload
from tvm_edge.schedules.blocked import (
    CONV2D,
    DEPTHWISE,
    ConvWorkload,
    conv2d,
    filled,
    input_block,
    pack_filters,
    pack_image,
    unpack_image,
)
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.cpu.gather_channels import gather_channels
from tvm_edge.schedules.winograd import PRODUCT, conv2d_winograd, transform_filters

__all__ = ["BlockLayout"]

_Rule = Callable[[relax.Call], "tuple[relax.Expr, int] | None"]


@tvm.transform.module_pass(opt_level=0, name="BlockLayout")
class BlockLayout:
    """Give convolutions of static shape and constant filters a blocked layout.

    Parameters
    ----------
    spec : DeviceSpec
        The CPU: a block has the lanes of its vector registers.
    configs : mapping of ConvWorkload to ConvConfig, optional
        Algorithm and knobs of convolutions, instead of the heuristic's.

    Examples
    --------
    ``relu(conv2d(x, w))`` of 64 channels becomes, with ``pack``, ``conv2d_blocked`` and ``unpack``
    kernels and `w_packed` a constant::

        x_blocked = pack(x)                                 # [1, 64, H, W] as [1, 4, H, W, 16]
        y = unpack(relu(conv2d_blocked(x_blocked, w_packed)))
    """

    def __init__(
        self, spec: DeviceSpec, configs: Mapping[ConvWorkload, ConvConfig] | None = None
    ) -> None:
        self._spec = spec
        self._configs = configs or {}

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if self._spec.lanes() == 1:
            return mod
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                chosen = choose_blocked(func, self._spec, self._configs)
                mod = _Blocker(mod, chosen).blocked(gvar, func)
        return mod


@dataclass(frozen=True)
class _Image:
    """An image in blocks: the variable, and how many of its channels are not filling."""

    var: relax.Var
    channels: int

    @property
    def block(self) -> int:
        """Channels in a block."""
        shape = static_shape(self.var.ty)
        assert shape is not None
        return shape[-1]


@dataclass(frozen=True)
class _Channel:
    """One channel of an image in blocks."""

    image: relax.Var
    number: int
    block: int


def _array(channels: list[_Channel]) -> np.ndarray:
    array = np.empty(len(channels), dtype=object)
    array[:] = channels
    return array


@mutator
class _Blocker(PyExprMutator):
    def __init__(
        self,
        mod: tvm.IRModule,
        chosen: Mapping[relax.Call, ConvConfig],
    ) -> None:
        super().__init__(mod)
        self._chosen = chosen
        self._blocked: dict[relax.Var, _Image] = {}
        self._repacked: dict[tuple[relax.Expr, int], _Image] = {}  # in blocks of other sizes
        self._plain: dict[relax.Var, relax.Var] = {}
        self._picked: dict[relax.Expr, np.ndarray] = {}
        self._splits: dict[relax.Expr, list[np.ndarray]] = {}
        self._rules: dict[str, _Rule] = {
            "relax.concat": self._concat,
            "relax.image.resize2d": self._resize2d,
            "relax.mean": self._mean,
            "relax.nn.avg_pool2d": self._pool2d,
            "relax.nn.conv2d": self._conv2d,
            "relax.nn.max_pool2d": self._pool2d,
        }

    def blocked(self, gvar: tvm.ir.GlobalVar, func: relax.Function) -> tvm.IRModule:
        """The module with one function rewritten, and the kernels it calls.

        The builder's module must be asked for here: it is gone with the mutator.
        """
        self.builder_.update_func(gvar, self.visit_expr(func))
        return self.builder_.get()

    # -------------------------------------------------------------------------------- bindings

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        image = self._rewrite(binding.value)
        if image is None:
            self._regroup(binding.var, binding.value)
            super().visit_var_binding_(binding)  # dead, and removed, if only blocks are read
            return
        value, channels = image
        blocked = _Image(self._emit_as(binding.var.name, value), channels)
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

    def _emit_as(self, name: str, value: relax.Expr) -> relax.Var:
        """Bind `value` to a variable of this very name; ``emit`` might append a digit to it.

        The name says which node of the user's model is computed.
        """
        value = self.builder_.normalize(value)
        var = relax.DataflowVar(name, value.ty)
        self.builder_.emit_normalized(relax.VarBinding(var, value))
        return var

    # ---------------------------------------------------------------------- packing, unpacking

    def _packed(self, expr: relax.Expr, block: int) -> _Image:
        """An image in blocks, packed now if it is not yet."""
        known = self._image(expr)
        if known is not None and known.block == block:
            return known
        if (expr, block) in self._repacked:
            return self._repacked[expr, block]
        shape = static_shape(expr.ty)
        assert shape is not None
        batch, channels, *size = shape
        value = self.visit_expr(expr)
        if block == 1 or (size == [1, 1] and channels % block == 0):
            value = relax.op.reshape(value, (batch, channels // block, *size, block))
        else:
            value = self.builder_.call_te(pack_image, value, block, primfunc_name_hint="pack")
        image = _Image(self.builder_.emit(value, "packed"), channels)
        if known is None and block > 1 and isinstance(expr, relax.Var):
            self._blocked[expr] = image
            if isinstance(expr, relax.DataflowVar):
                self._plain[expr] = self.get_var_remap(expr)
        else:
            self._repacked[expr, block] = image
        return image

    def _image(self, expr: relax.Expr) -> _Image | None:
        """The blocks of an image that has them; picked channels are copied together now."""
        picked = self._picked.get(expr)
        if picked is None or picked.ndim != 1:
            return self._blocked.get(expr)
        if expr not in self._blocked:
            sources = list(dict.fromkeys(channel.image for channel in picked))
            picks = [(sources.index(channel.image), channel.number) for channel in picked]
            shapes = [static_shape(source.ty) or () for source in sources]
            name = self.builder_.add_func(gather_channels(shapes, picks), "gather_channels")
            block = shapes[0][-1]
            shape = (shapes[0][0], filled(len(picks), block) // block, *shapes[0][2:])
            call = relax.call_tir(name, sources, relax.TensorType(shape, "float32"))
            self._blocked[expr] = _Image(self.builder_.emit(call, "gathered"), len(picks))
        return self._blocked[expr]

    def _channels(self, expr: relax.Expr) -> np.ndarray | None:
        """Which channel of which image each channel of `expr` is; ``None`` if it has no blocks."""
        if expr in self._picked:
            return self._picked[expr]
        image = self._blocked.get(expr)
        if image is None:
            return None
        return _array([_Channel(image.var, i, image.block) for i in range(image.channels)])

    def _regroup(self, var: relax.Var, value: relax.Expr) -> None:
        """Note that `value` only moves channels of blocked images, if that is so.

        Concatenations that do not fill blocks, splits, and shuffles (a reshape into groups, a
        transposition, a reshape back): nothing is copied until somebody reads the result.
        """
        if isinstance(value, relax.TupleGetItem):
            sections = self._splits.get(value.tuple_value)
            if sections is not None:
                self._picked[var] = sections[value.index]
            return
        if is_call(value, "relax.concat"):
            parts = self._concat_parts(value)
            of_parts = [] if parts is None else [self._channels(part) for part in parts]
            known = [c for c in of_parts if c is not None and c.ndim == 1]
            picked = np.concatenate(known) if known and len(known) == len(of_parts) else None
            if picked is not None and len({channel.block for channel in picked}) == 1:
                self._picked[var] = picked
            return
        if not is_call(value, "relax.split", "relax.reshape", "relax.permute_dims"):
            return
        channels = self._channels(value.args[0])
        if channels is None:
            return
        if is_call(value, "relax.split"):
            if int(value.attrs.axis) % 4 == 1 and channels.ndim == 1:
                sizes = [(static_shape(part) or (0, 0))[1] for part in value.ty.fields]
                self._splits[var] = np.split(channels, np.cumsum(sizes)[:-1])
            return
        before, after = static_shape(value.args[0].ty), static_shape(value.ty)
        if before is None or after is None:
            return
        if is_call(value, "relax.reshape"):
            grouped = after[1:-2]
            if before[0] == after[0] and before[-2:] == after[-2:] and grouped:
                self._picked[var] = channels.reshape(grouped)
            return
        rank = len(after)
        axes = [int(axis) for axis in value.attrs.axes or range(rank - 1, -1, -1)]
        if axes[0] == 0 and axes[-2:] == [rank - 2, rank - 1]:
            self._picked[var] = channels.transpose([axis - 1 for axis in axes[1:-2]])

    def _concat_parts(self, call: relax.Call) -> list[relax.Expr] | None:
        """The images that are concatenated along channels."""
        parts = call.args[0]
        if isinstance(parts, relax.Var):
            parts = self.lookup_binding(parts)
        if not isinstance(parts, relax.Tuple) or int(call.attrs.axis) % 4 != 1:
            return None
        return list(parts.fields)

    def _unpacked(self, image: _Image, ty: relax.Type) -> relax.Expr:
        shape = static_shape(ty)
        assert shape is not None
        size = list(shape[2:])
        if size == [1, 1] and image.channels % image.block == 0:
            return relax.op.reshape(image.var, shape)
        return self.builder_.call_te(
            unpack_image, image.var, image.channels, primfunc_name_hint="unpack"
        )

    # ------------------------------------------------------------------------------- operators

    def _rewrite(self, value: relax.Expr) -> tuple[relax.Expr, int] | None:
        """`value` over blocked images, and its channels; ``None`` if it stays as it is."""
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        shape = static_shape(value.ty)
        if shape is None or len(shape) != 4 or 0 in shape:
            return None
        name = str(value.op.name)
        if name in UNARY:
            return self._unary(value)
        if name in BINARY:
            return self._binary(value, shape)
        rule = self._rules.get(name)
        return None if rule is None else rule(value)

    def _conv2d(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        config = self._chosen.get(call)
        if config is None:
            return None
        found = conv_workload(call)
        assert found is not None, "only convolutions with a workload are chosen"
        workload, weights = found
        block = config.block
        depth = input_block(workload, block)
        image = self._packed(call.args[0], depth)
        if config.algorithm == "winograd":
            filters = const(transform_filters(weights, config.m, block), "float32")
            result = self.builder_.call_te(
                conv2d_winograd,
                image.var,
                filters,
                config.m,
                workload.padding,
                config.knobs,
                primfunc_name_hint=PRODUCT.replace("product", "conv2d"),
                # Several stages: TVM would take none of them for one that tails may follow.
                primfunc_attrs={"op_pattern": 4},
            )
            return result, workload.filters
        if workload.depthwise:
            depth = 1
        result = self.builder_.call_te(
            conv2d,
            image.var,
            const(pack_filters(weights, depth, block, workload.groups), "float32"),
            workload.strides,
            workload.padding,
            workload.dilation,
            workload.groups,
            config.knobs,
            primfunc_name_hint=DEPTHWISE if workload.depthwise else CONV2D,
        )
        return result, workload.filters

    def _unary(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        image = self._image(call.args[0])
        if image is None:
            return None
        return relax.Call(call.op, [image.var, *call.args[1:]], call.attrs), image.channels

    def _binary(self, call: relax.Call, shape: tuple[int, ...]) -> tuple[relax.Expr, int] | None:
        images = [self._image(arg) for arg in call.args]
        if not any(images):
            return None
        values = [constant_of(arg) for arg in call.args]
        known = [image for image in images if image is not None]
        if len(known) + sum(value is not None for value in values) < 2:
            return None
        if any(image.channels != shape[1] for image in known):
            return None  # an image of one channel, broadcast
        block = known[0].block
        operands = [
            self._packed(arg, block).var
            if value is None
            else const(_pack_constant(value, block), str(value.dtype))
            for arg, value in zip(call.args, values, strict=True)
        ]
        return relax.Call(call.op, operands, call.attrs), shape[1]

    def _pool2d(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        image = self._image(call.args[0])
        if image is None or call.attrs.layout != "NCHW" or call.attrs.out_layout != "NCHW":
            return None
        attrs = call.attrs
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
        image = self._image(call.args[0])
        axes = [int(axis) % 4 for axis in call.attrs.axis or []]
        if image is None or sorted(axes) != [2, 3] or not call.attrs.keepdims:
            return None
        return relax.op.mean(image.var, [2, 3], keepdims=True), image.channels

    def _concat(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        parts = self._concat_parts(call)
        if parts is None or any(part in self._picked for part in parts):
            return None
        images = [self._blocked.get(part) for part in parts]
        first = images[0]
        if first is None or None in images:
            return None
        known = [self._packed(part, first.block) for part in parts]
        if any(image.channels % image.block for image in known[:-1]):
            return None
        result = self.builder_.call_te(
            lambda *parts: topi.concatenate(parts, 1),
            *(image.var for image in known),
            primfunc_name_hint="concatenate",
            primfunc_attrs={CONCAT: True},
        )
        return result, sum(image.channels for image in known)

    def _resize2d(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        image = self._image(call.args[0])
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


def _pack_constant(value: np.ndarray, block: int) -> np.ndarray:
    """A constant that broadcasts to an image, as it broadcasts to the blocked image."""
    if value.size == 1:
        return value.reshape(())
    batch, channels, *size = (1,) * (4 - value.ndim) + value.shape
    value = value.reshape(batch, channels, *size)
    if channels == 1:
        return value[..., None]
    fill = [(0, 0), (0, filled(channels, block) - channels), *((0, 0) for _ in size)]
    whole = np.pad(value, fill, mode="edge")
    blocks = whole.reshape(batch, -1, block, *size)
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 4, 2))
