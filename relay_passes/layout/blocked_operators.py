"""Operators between convolutions, over images in channel blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tvm
from tvm import relax, tirx, topi

from tvm_edge.hardware import DeviceSpec
from tvm_edge.ops.elementwise.slopes import channel_slopes
from tvm_edge.ops.movement import CONCAT
from tvm_edge.ops.registry import of_call
from tvm_edge.relay_passes.ir.expressions import const, constant_of, lengths_of, typical_shape
from tvm_edge.relay_passes.ir.locations import emit_at
from tvm_edge.relay_passes.ir.vdevices import vdevice_of
from tvm_edge.relay_passes.layout.blocked_images import BlockedImages, image_lengths
from tvm_edge.relay_passes.layout.gpu_convolution import gpu_pool
from tvm_edge.relay_passes.layout.moved_channels import BlockedImage
from tvm_edge.relay_passes.precision.stored_arithmetic import arithmetic_of, call_arithmetic
from tvm_edge.schedules.blocked import filled, pack_constant

__all__ = ["BlockedOperators"]

_LONG_MEAN = 1024
"""Pixels above which a mean is one of the means of lines: one sum of 184 x 184 numbers, rounded
after each of them, is wrong by 4e-4 of itself."""

Rule = Callable[[relax.Call], "tuple[relax.Expr, int] | None"]


class BlockedOperators:
    """Rules that write an operator over blocks.

    Parameters
    ----------
    builder : relax.BlockBuilder
    images : BlockedImages
    spec : DeviceSpec
    convolutions : dict of str to callable
        Rules of more operators, by their names.
    """

    def __init__(
        self,
        builder: relax.BlockBuilder,
        images: BlockedImages,
        spec: DeviceSpec,
        convolutions: Mapping[str, Rule],
    ) -> None:
        self._builder = builder
        self._images = images
        self._spec = spec
        self._result: relax.Var | None = None  # the one at hand
        self._planned: int | None = None  # its layout
        self._rules: dict[str, Rule] = {
            "relax.concat": self._concat,
            "relax.image.resize2d": self._resize2d,
            "relax.mean": self._mean,
            "relax.nn.avg_pool2d": self._pool2d,
            "relax.nn.max_pool2d": self._pool2d,
            "relax.nn.prelu": self._prelu,
            **convolutions,
        }

    def rewrite(
        self, var: relax.Var, value: relax.Expr, planned: int | None
    ) -> tuple[relax.Expr, int] | None:
        """Write a value over images in blocks.

        Parameters
        ----------
        var : relax.Var
            The variable that it is bound to.
        value : relax.Expr
        planned : int, optional
            Its channel block, where a plan says that.

        Returns
        -------
        tuple of relax.Expr and int, or None
            The value and its channels; ``None`` if it stays as it is.
        """
        self._result, self._planned = var, planned
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        shape = lengths_of(value.ty)
        if shape is None or len(shape) != 4 or not isinstance(shape[1], int):
            return None
        if any(isinstance(length, int) and not length for length in shape):
            return None
        arithmetic = arithmetic_of(value, self._builder.get())
        if arithmetic:
            return self._arithmetic(arithmetic, value)
        blocks = of_call(value).blocks
        if blocks == "unary":
            return self._unary(value)
        if blocks == "nary":
            return self._nary(value, shape)
        rule = self._rules.get(str(value.op.name))
        return None if rule is None else rule(value)

    def _operand(self, expr: relax.Expr) -> BlockedImage | None:
        """Return the image in the blocks planned for the result, or else in those it has."""
        if self._planned:
            return self._images.packed(expr, self._planned)
        return self._images.image(expr)

    def _unary(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        constants = [constant_of(arg) for arg in call.args[1:]]
        if any(value is not None and value.size > 1 for value in constants):
            return None  # one for each channel
        image = self._operand(call.args[0])
        if image is None:
            return None
        return relax.Call(call.op, [image.var, *call.args[1:]], call.attrs), image.channels

    def _nary(
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
        if len(known) + sum(value is not None for value in values) < len(values):
            return None
        if any(image.channels != shape[1] for image in known):
            return None  # an image of one channel, broadcast
        block = self._planned or known[0].block
        operands = [
            self._images.packed(arg, block).var
            if value is None
            else const(pack_constant(value, block), str(value.dtype))
            for arg, value in zip(call.args, values, strict=True)
        ]
        return relax.Call(call.op, operands, call.attrs), shape[1]

    def _prelu(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        slopes, image = channel_slopes(call), self._operand(call.args[0])
        if slopes is None or image is None:
            return None
        x, dtype = image.var, str(slopes.dtype)
        packed = const(pack_constant(slopes.reshape(-1, 1, 1), image.block), dtype)
        below = emit_at(self._builder, relax.op.multiply(x, packed), self._result)
        positive = relax.op.greater(x, const(np.zeros((), dtype), dtype))
        positive = emit_at(self._builder, positive, self._result)
        return relax.op.where(positive, x, below), image.channels

    def _arithmetic(self, operator: str, call: relax.Call) -> tuple[relax.Expr, int] | None:
        """Make a kernel of images in blocks of one of images and constants."""
        args = list(call.args[1].fields)
        values = [constant_of(arg) for arg in args]
        images = [
            self._images.image(arg) if value is None else None
            for arg, value in zip(args, values, strict=True)
        ]
        known = [image for image in images if image is not None]
        if not known or len(known) + sum(value is not None for value in values) < len(args):
            return None
        first, shape = known[0], image_lengths(call.ty)
        if any(image.channels != shape[1] or image.block != first.block for image in known):
            return None  # an image of one channel, broadcast
        operands = [
            const(pack_constant(value, first.block), str(value.dtype))
            if value is not None
            else self._images.packed(arg, first.block).var
            for arg, value in zip(args, values, strict=True)
        ]
        blocks = filled(first.channels, first.block) // first.block
        result = call_arithmetic(
            self._builder,
            operator,
            operands,
            (shape[0], blocks, *shape[2:], first.block),
            vdevice_of(call.ty),
            str(call.ty.dtype),
        )
        return result, first.channels

    def _pool2d(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        image = self._operand(call.args[0])
        if image is None or call.attrs.layout != "NCHW" or call.attrs.out_layout != "NCHW":
            return None
        attrs = call.attrs
        if self._spec.tensor_cores:
            pool = gpu_pool(self._builder, image.var, call)
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
        lines = emit_at(self._builder, lines, self._result)
        return relax.op.mean(lines, [2], keepdims=True), image.channels

    def _concat(self, call: relax.Call) -> tuple[relax.Expr, int] | None:
        parts = self._images.concat_parts(call)
        if parts is None or any(part in self._images.moved for part in parts):
            return None
        images = [self._images.known(part) for part in parts]
        first = images[0]
        if not self._planned and (first is None or None in images):
            return None
        block = self._planned or (first.block if first is not None else 0)
        sizes = [image_lengths(part.ty)[1] for part in parts]
        if any(size % block for size in sizes[:-1]):
            return None
        known = [self._images.packed(part, block) for part in parts]
        channels = sum(image.channels for image in known)
        if not self._spec.has_cpu_cores:
            return relax.op.concat([image.var for image in known], axis=1), channels
        result = self._builder.call_te(
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
