"""Calculate with quantised tensors as they are stored.

Quantised models come as float32 operators between DEQUANTIZE and QUANTIZE
(:mod:`tvm_edge.ops.quantize`), a pair around each. Two things become whole numbers here:

* convolutions and products with constant weights. ``Σ (x - zx)·sx·w·sw`` is ``sx·sw`` times a sum
  of int32, of which zero points are constants: ``- zx·Σw`` goes to the bias, and the image is
  padded with its zero point. The epilogue in float32 is fused with the kernel that reduces, and
  works on its registers;
* what only moves or compares numbers. QUANTIZE is monotone, so that it can go before a ReLU, a
  clip, a maximum, a concatenation or a transposition, until it meets the accumulators it belongs to
  or the DEQUANTIZE that it undoes.

Sums that a model has in int32 are in :mod:`tvm_edge.relay_passes.quantize.integer_products`.

A sum is rounded once, ``round(sum · (sx·sw/sy)) + zy``, as ONNX Runtime does; for what has no
instruction of the CPU's, or no constant weights, numbers are converted and the operator is
float32's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import tvm
from tvm import relax
from tvm.relax import transform
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.hardware import DeviceSpec
from tvm_edge.ops import (
    DEQUANTIZE,
    QUANTIZE,
    byte_table,
    dequantize,
    quantize,
    quantized_add,
)
from tvm_edge.ops.quantization.constants import QuantizedConstant
from tvm_edge.relay_passes.ir.expressions import (
    all_bindings,
    bindings_of,
    constant_of,
    count_uses,
    is_call,
    static_shape,
)
from tvm_edge.relay_passes.ir.locations import emit_at
from tvm_edge.relay_passes.ir.workloads import INT8_TYPES, workload_of
from tvm_edge.relay_passes.quantize.accumulators import (
    Accumulator,
    convolution,
    in_lines,
    pixels,
    product_workload,
)
from tvm_edge.relay_passes.quantize.byte_functions import ByteFunctions, requantized
from tvm_edge.relay_passes.quantize.encodings import (
    Encoding,
    encoding_of,
    moved,
    rounded,
)
from tvm_edge.relay_passes.quantize.forms import Form, form_of
from tvm_edge.relay_passes.quantize.integer_products import (
    bytes_less_zero,
    integer_constant,
    integer_convolution,
    is_integer_sum,
    moved_zero,
)
from tvm_edge.relay_passes.quantize.moves import moves
from tvm_edge.relay_passes.quantize.quantized_constants import quantized_constant

__all__ = ["Quantize", "is_quantized"]


@tvm.transform.module_pass(opt_level=0, name="Quantize")
class Quantize:
    """Give convolutions and products of quantised tensors a kernel of whole numbers.

    Parameters
    ----------
    spec : DeviceSpec
        Where they run; nothing changes on a CPU that has no instruction for them.
    """

    def __init__(self, spec: DeviceSpec) -> None:
        self._spec = spec

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        form = form_of(self._spec)
        if form is None or not is_quantized(mod):
            return mod
        mod = transform.CanonicalizeBindings()(mod)  # names of values lead to what they are
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function) and _is_straight(func):
                mod[gvar] = _Quantizer(mod, func, form).visit_expr(func)
        return mod


def is_quantized(mod: tvm.IRModule) -> bool:
    """Return whether a function has quantised tensors, or sums of whole numbers."""
    functions = (f for _, f in mod.functions_items() if isinstance(f, relax.Function))
    values = [binding.value for f in functions for binding in all_bindings(f.body)]
    return any(is_call(value, DEQUANTIZE) or is_integer_sum(value) for value in values)


def _is_straight(func: relax.Function) -> bool:
    """Return whether bindings are visible wherever they may be used: no branches, one block."""
    bindings = bindings_of(func)
    return len(func.body.blocks) == 1 and not any(isinstance(b.value, relax.If) for b in bindings)


@mutator
class _Quantizer(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, func: relax.Function, form: Form) -> None:
        super().__init__(mod)
        self._stored = form.stored
        self._takes = form.takes
        self._tables = form.tables
        self._uses = count_uses(func)
        self._bound: dict[relax.Var, relax.Expr] = {}
        self._functions = ByteFunctions(self._bound)
        self._accumulators: dict[relax.Var, Accumulator] = {}
        self._made: dict[relax.Expr, relax.Expr] = {}  # 8-bit tensors in the stored type
        self._forms: dict[tuple[relax.Expr, Encoding], relax.Expr] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._bound[binding.var] = binding.value
        made = self._rewritten(binding.var, binding.value)
        if made is not None:
            binding = relax.VarBinding(binding.var, self.builder_.normalize(made))
        super().visit_var_binding_(binding)

    def _rewritten(self, var: relax.Var, value: relax.Expr) -> relax.Expr | None:
        if is_call(value, QUANTIZE):
            return self._requantize(var, value)
        found = None
        if is_integer_sum(value):
            return self._integers(value)
        if is_call(value, "relax.nn.conv2d"):
            found = self._conv2d(var, value)
        elif is_call(value, "relax.matmul"):
            found = self._matmul(var, value)
        elif is_call(value, "relax.add"):
            found = self._biased(value)
        if found is None:
            return None
        self._accumulators[var] = found
        return found.finish(self._real(found))

    def _emit(self, value: relax.Expr, like: relax.Expr | None = None) -> relax.Expr:
        """A variable that holds `value`, at the location of `like`."""
        return value if isinstance(value, relax.Var) else emit_at(self.builder_, value, like)

    # ------------------------------------------------------------------------------------ tensors

    def _requantize(self, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        """The result of a QUANTIZE, in the stored type for those who take it so."""
        encoding = encoding_of(call, str(call.attrs["dtype"]))
        if encoding is None or static_shape(call.ty) is None:
            return None
        made = self._emit(self._as(call.args[0], encoding.stored_as(self._stored)), var)
        self._made[var] = made
        return moved(made, encoding.dtype)

    def _quantized(self, expr: relax.Expr) -> tuple[relax.Expr, Encoding] | None:
        """The tensor that a real one is the DEQUANTIZE of, in the stored type."""
        value = self._bound.get(expr)
        if moves(value):
            inner = self._quantized(value.args[0])
            if inner is None:
                return None
            if expr not in self._made:
                self._made[expr] = self._emit(self._applied(value, inner[0]), expr)
            return self._made[expr], inner[1]
        if not is_call(value, DEQUANTIZE):
            return None
        data = value.args[0]
        dtype = str(data.ty.dtype)
        encoding = encoding_of(value, dtype) if dtype in INT8_TYPES else None
        if encoding is None or constant_of(data) is not None or static_shape(data.ty) is None:
            return None
        if data not in self._made:
            made = moved(self.visit_expr(data), self._stored)
            self._made[data] = self._emit(self.builder_.normalize(made))
        return self._made[data], encoding.stored_as(self._stored)

    def _applied(self, call: relax.Call, data: relax.Expr) -> relax.Call:
        """An operator of something else."""
        rest = [self.visit_expr(arg) for arg in call.args[1:]]
        return relax.Call(call.op, [data, *rest], call.attrs, call.ty_args)

    def _as(self, expr: relax.Expr, encoding: Encoding) -> relax.Expr:
        """A real tensor quantised."""
        if (expr, encoding) not in self._forms:
            self._forms[expr, encoding] = self._emit(self._quantize(expr, encoding), expr)
        return self._forms[expr, encoding]

    def _quantize(self, expr: relax.Expr, encoding: Encoding) -> relax.Expr:
        known = self._quantized(expr)
        if known is not None and known[1] == encoding:
            return known[0]
        if (looked_up := self._looked_up(expr, encoding)) is not None:
            return looked_up
        if known is None and self._uses.get(expr, 0) == 1:
            value = self._bound.get(expr)
            if expr in self._accumulators:
                found = self._accumulators[expr]
                return found.finish(rounded(self._real(found, encoding.scale), encoding))
            if is_call(value, "relax.nn.relu"):
                return self._bounded(value.args[0], encoding, 0.0, float("inf"))
            if is_call(value, "relax.clip"):
                low, high = (float(arg.value) for arg in value.args[1:3])
                return self._bounded(value.args[0], encoding, low, high)
            if moves(value):
                return self._applied(value, self._as(value.args[0], encoding))
            if is_call(value, "relax.concat") and (parts := self._parts(value)) is not None:
                made = [self._as(part, encoding) for part in parts]
                return relax.op.concat(made, int(value.attrs.axis))
        added = self._added(expr, encoding)
        if added is not None:
            return added
        scaled = self._over_scale(expr, encoding.scale)
        if scaled is not None:
            return rounded(scaled, encoding)
        scale = relax.const(np.float32(encoding.scale), "float32")
        zero = relax.const(encoding.zero, "int32")
        return quantize(self.visit_expr(expr), scale, zero, encoding.dtype)

    def _looked_up(self, expr: relax.Expr, encoding: Encoding) -> relax.Expr | None:
        """A function of one quantised tensor, as a table."""
        if not self._tables:
            return None
        known = self._quantized(expr)
        if known is not None:
            return byte_table(known[0], requantized(known[1], encoding))
        argument = self._functions.argument(expr, encoding)
        known = None if argument is None else self._quantized(argument)
        return (
            None if known is None else byte_table(known[0], self._functions.table(expr, encoding))
        )

    def _added(self, expr: relax.Expr, encoding: Encoding) -> relax.Expr | None:
        """A sum of two quantised tensors, where nobody else reads it."""
        value = self._bound.get(expr)
        if not is_call(value, "relax.add") or self._uses.get(expr, 0) != 1:
            return None
        if any(static_shape(arg.ty) != static_shape(value.ty) for arg in value.args):
            return None
        known = [self._quantized(arg) for arg in value.args]
        if known[0] is None or known[1] is None:
            return None
        order = list(self._bound)
        # The later sum is not stored, as the earlier one may share a launch with another kernel.
        # FuseOps takes the operand that is quantised first into the kernel of the addition.
        later, earlier = sorted((0, 1), key=lambda i: order.index(value.args[i]), reverse=True)
        for i, other in ((later, earlier), (earlier, later)):
            found = self._in_registers(value.args[i])
            if found is not None:
                known[i] = found
                known[other] = self._quantized_again(value.args[other]) or known[other]
                break
        (a, one), (b, two) = (each for each in known if each is not None)
        ratios = [np.float32(own.scale) / np.float32(encoding.scale) for own in (one, two)]
        shift = -(ratios[0] * np.float32(one.zero) + ratios[1] * np.float32(two.zero))
        return quantized_add(
            a,
            b,
            ratios=(float(ratios[0]), float(ratios[1])),
            shift=float(shift),
            zero=encoding.zero,
            dtype=encoding.dtype,
        )

    def _in_registers(self, expr: relax.Expr) -> tuple[relax.Expr, Encoding] | None:
        """The numbers quantised for `expr` alone, as whole numbers of float32 around zero.

        They are not stored: what reads them is fused with the kernel of their accumulators.
        """
        alone = self._sum_alone(expr)
        if alone is None:
            return None
        var, own, read = alone
        found, limits = self._accumulators[var], np.iinfo(own.dtype)
        low, high = (np.float32(limit - own.zero) for limit in (limits.min, limits.max))
        real = relax.op.maximum(self._real(found, own.scale), relax.const(low, "float32"))
        inside = relax.op.minimum(real, relax.const(high, "float32"))
        numbers = self.builder_.normalize(found.finish(relax.op.round(inside)))
        return self._emit(numbers, var), replace(read, zero=read.zero - own.zero)

    def _quantized_again(self, expr: relax.Expr) -> tuple[relax.Expr, Encoding] | None:
        """The numbers quantised for `expr` alone, after all that there is so far."""
        alone = self._sum_alone(expr)
        if alone is None:
            return None
        var, own, read = alone
        found, encoding = self._accumulators[var], own.stored_as(self._stored)
        numbers = found.finish(rounded(self._real(found, own.scale), encoding))
        return self._emit(numbers, var), read.stored_as(self._stored)

    def _sum_alone(self, expr: relax.Expr) -> tuple[relax.Var, Encoding, Encoding] | None:
        """The sum that is quantised for `expr` alone, and how it is quantised and read."""
        value = self._bound.get(expr)
        if not is_call(value, DEQUANTIZE):
            return None
        data = value.args[0]
        call = self._bound.get(data)
        if not is_call(call, QUANTIZE) or any(self._uses[var] != 1 for var in (expr, data)):
            return None
        own, read = (encoding_of(each, str(data.ty.dtype)) for each in (call, value))
        (summed, *_) = call.args
        if summed not in self._accumulators or self._uses[summed] != 1:
            return None
        if own is None or read is None:
            return None
        return summed, own, read

    def _over_scale(self, expr: relax.Expr, scale: float) -> relax.Expr | None:
        """A tensor over a scale, or a sum of two, where they are known as whole numbers."""
        known = self._quantized(expr)
        if known is not None:
            numbers, own = known
            ratio = relax.const(np.float32(own.scale) / np.float32(scale), "float32")
            return dequantize(numbers, ratio, relax.const(own.zero, "int32"))
        if self._uses.get(expr, 0) != 1:
            return None
        if expr in self._accumulators:
            found = self._accumulators[expr]
            return found.finish(self._real(found, scale))
        value = self._bound.get(expr)
        if not is_call(value, "relax.add"):
            return None
        addends = [self._over_scale(arg, scale) for arg in value.args]
        if addends[0] is None or addends[1] is None:
            return None
        return relax.op.add(*(self._emit(term) for term in addends))

    def _bounded(self, expr: relax.Expr, encoding: Encoding, low: float, high: float) -> relax.Expr:
        """``clip(expr, low, high)``: the bounds are whole numbers too."""
        made = self._as(expr, encoding)
        limits = np.iinfo(encoding.dtype)
        bounds = [encoding.bound(low), encoding.bound(high)]
        if bounds[0] > limits.min:
            least = relax.const(min(bounds[0], limits.max), encoding.dtype)
            made = relax.op.maximum(made, least)
        if bounds[1] < limits.max:
            most = relax.const(max(bounds[1], limits.min), encoding.dtype)
            made = relax.op.minimum(self._emit(made), most)
        return made

    def _parts(self, call: relax.Call) -> list[relax.Expr] | None:
        """The tensors that are concatenated."""
        whole = self._bound.get(call.args[0], call.args[0])
        return list(whole.fields) if isinstance(whole, relax.Tuple) else None

    # --------------------------------------------------------------------------------------- sums

    def _real(self, found: Accumulator, scale: float = 1.0) -> relax.Expr:
        return self._emit(self.builder_.normalize(found.real(scale)))

    def _located(self, found: Accumulator | None, var: relax.Var) -> Accumulator | None:
        """Accumulators whose numbers are bound at the location of `var`."""
        if found is None:
            return None
        numbers = self._emit(self.builder_.normalize(found.numbers), var)
        return replace(found, numbers=numbers)

    def _conv2d(self, var: relax.Var, call: relax.Call) -> Accumulator | None:
        weights = quantized_constant(call.args[1], self._bound)
        known = None if weights is None else self._quantized(call.args[0])
        workload = None if weights is None else workload_of(call, weights.values)
        if weights is None or known is None or workload is None:
            return None
        if not self._takes(workload):
            return None
        found = convolution(*known, workload, weights, lambda result: result)
        return self._located(found, var)

    def _matmul(self, var: relax.Var, call: relax.Call) -> Accumulator | None:
        """With a constant matrix: the rows on the left are pixels."""
        weights = quantized_constant(call.args[1], self._bound)
        shape, whole = static_shape(call.args[0].ty), static_shape(call.ty)
        if weights is None or weights.values.ndim != 2 or shape is None or whole is None:
            return None
        workload = product_workload(shape, weights.values.shape[1])
        known = self._quantized(call.args[0])
        if known is None or len(shape) < 2 or not self._takes(workload):
            return None
        data = pixels(known[0], workload, self._bind)
        filters = QuantizedConstant(
            *(part.T[..., None, None] for part in (weights.values, weights.scale, weights.zero))
        )
        finish = partial(in_lines, shape=whole)
        return self._located(convolution(data, known[1], workload, filters, finish), var)

    def _bind(self, value: relax.Expr) -> relax.Expr:
        return self._emit(self.builder_.normalize(value))

    def _integers(self, call: relax.Call) -> relax.Expr | None:
        """A convolution or a product of whole numbers, with constant weights."""
        found = bytes_less_zero(call.args[0], self._bound)
        weights = integer_constant(call.args[1], self._bound)
        shape, whole = static_shape(call.args[0].ty), static_shape(call.ty)
        if found is None or weights is None or shape is None or whole is None:
            return None
        is_product = is_call(call, "relax.matmul")
        if is_product and (weights.ndim != 2 or len(shape) < 2 or 0 in shape):
            return None
        data, zero = found
        workload = (
            product_workload(shape, weights.shape[1]) if is_product else workload_of(call, weights)
        )
        shift = Encoding(1.0, 0, str(data.ty.dtype)).stored_as(self._stored).zero
        if isinstance(zero, relax.Expr):
            zero = self.visit_expr(zero)
        if workload is None:
            return None
        zero = moved_zero(zero, shift, workload.width if is_product else 0, self._bind)
        if zero is None:
            return None
        if data not in self._made:
            self._made[data] = self._bind(moved(self.visit_expr(data), self._stored))
        numbers = self._made[data]
        if not is_product:
            return integer_convolution(numbers, zero, workload, weights, self._takes, self._bind)
        lines, filters = pixels(numbers, workload, self._bind), weights.T[..., None, None]
        accumulators = integer_convolution(lines, zero, workload, filters, self._takes, self._bind)
        return None if accumulators is None else in_lines(accumulators, whole)

    def _biased(self, call: relax.Call) -> Accumulator | None:
        """Accumulators plus a constant for each channel."""
        for data, bias in (call.args, reversed(call.args)):
            found = self._accumulators.get(data)
            if found is not None and static_shape(call.ty) == static_shape(data.ty):
                biased = found.biased(data, bias, self._bound)
                if biased is not None:
                    return biased
        return None
