"""Element-wise operators: arithmetic, comparisons, logic, activations."""

from __future__ import annotations

import operator

from tvm import tirx

from tvm_edge.ops.elementwise import converters, kernels
from tvm_edge.ops.flops import Formula, elements, elementwise, no_flops
from tvm_edge.ops.registry import FOLLOWS, PERFORMS, Float16, register, relax_names

__all__: list[str] = []


def _variadic(more: int) -> Formula:
    """Return a formula of one operation per element between operands, and `more` after them."""
    return lambda op: (len(op.inputs) - 1 + more) * elements(op.outputs[0])


register(
    *"""
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil
    Celu Cos Div Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish IsNaN
    LeakyRelu Less LessOrEqual Log Mul Neg Not Or PRelu Reciprocal Relu Round Selu Shrink Sigmoid
    Sign Sin Softsign Sqrt Sub Swish Tan Tanh Xor
    """.split(),
    flops=elementwise,
)
register("BitShift", convert=converters.bit_shift, flops=elementwise)
register("Clip", convert=converters.clip, settings=(1, 2), flops=elementwise)
register("Cosh", convert=converters.cosh, flops=elementwise)
register("Elu", convert=converters.elu, flops=elementwise)
register("Equal", convert=converters.equal, flops=elementwise)
register("IsInf", convert=converters.is_inf, flops=elementwise)
register("Max", convert=converters.extremum(1), flops=_variadic(0))
register("Mean", flops=_variadic(1))
register("Min", convert=converters.extremum(-1), flops=_variadic(0))
register("Mish", convert=converters.mish, flops=elementwise)
register("Mod", convert=converters.mod, flops=elementwise)
register("Pow", convert=converters.power, flops=elementwise)
register("Sinh", convert=converters.sinh, flops=elementwise)
register("Softplus", convert=converters.softplus, flops=elementwise)
register("Sum", convert=converters.add_all, flops=_variadic(0))
register("ThresholdedRelu", convert=converters.thresholded_relu, flops=elementwise)
register("Where", flops=no_flops)

# A work-item for each element of the result.
register(
    *relax_names(
        """
        abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or
        bitwise_xor ceil clip cos cosh divide equal erf exp floor floor_divide floor_mod greater
        greater_equal isfinite isinf isnan left_shift less less_equal log log_add_exp logical_and
        logical_not logical_or logical_xor maximum minimum mod multiply negative nn.gelu
        nn.gelu_tanh nn.leakyrelu nn.prelu nn.relu nn.selu nn.silu nn.softplus not_equal power
        right_shift round rsqrt sigmoid sign sin sinh sqrt square subtract tan tanh trunc
        """
    ),
    gpu=PERFORMS,
    flops=elementwise,
)
register("relax.where", gpu=PERFORMS, float16=FOLLOWS, flops=no_flops)
register(
    *relax_names(
        "abs atan ceil clip cos cosh erf exp floor log negative nn.gelu nn.gelu_tanh nn.leakyrelu "
        "nn.relu nn.selu nn.silu nn.softplus round rsqrt sigmoid sign sin sinh sqrt square tan "
        "tanh trunc"
    ),
    blocks="unary",
)
register(
    *relax_names(
        "add divide greater greater_equal less less_equal logical_and logical_or maximum minimum "
        "multiply power subtract where"
    ),
    blocks="nary",
)
register("relax.nn.prelu", blocks="image")
register(
    *relax_names(
        "abs clip negative nn.gelu nn.gelu_tanh nn.leakyrelu nn.prelu nn.relu nn.silu sigmoid tanh"
    ),
    float16=FOLLOWS,
)
register("relax.add", float16=Float16(arithmetic=operator.add))
register("relax.divide", float16=Float16(arithmetic=tirx.div), legalize=kernels.safe_division)
register("relax.maximum", float16=Float16(arithmetic=tirx.max))
register("relax.minimum", float16=Float16(arithmetic=tirx.min))
register("relax.multiply", float16=Float16(arithmetic=operator.mul))
register("relax.subtract", float16=Float16(arithmetic=operator.sub))
register(*relax_names("floor_divide floor_mod mod"), legalize=kernels.safe_division)
register("relax.clip", legalize=kernels.clip)
register("relax.nn.relu", legalize=kernels.relu)
