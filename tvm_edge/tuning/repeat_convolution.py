"""Model that has one convolution several times, as it stands in a network.

Candidates of a GPU are measured in it: kernels, launches and intermediate results are those of a
network, and the filters of each copy its own, which no cache has.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tvm_edge.ops import quantize
from tvm_edge.relay_passes.ir.expressions import const
from tvm_edge.runtime.candidates import Operands, sample_place
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.tuning.conv_problem import convolve_at, rounding_of

__all__ = ["repeat_convolution"]

# Odd: as many different int8 values as there are. It moves low bits and high ones.
_STEP = 37


def repeat_convolution(
    workload: ConvWorkload, problem: Operands, count: int, *, sampled: bool = False
) -> tvm.IRModule:
    """Return a model that convolves one image `count` times, each time with filters of its own.

    The filters are those of the problem times powers of two, and so, exactly, are the results. int8
    has no such multiples: some bits of all filters are inverted.

    Parameters
    ----------
    workload : ConvWorkload
    problem : Operands
        NCHW.
    count : int
        At least 1, with `sampled` at least 2.
    sampled : bool
        Keep the convolutions inside of the CUDA graph, as in a network: kernels that read an input
        or write an output are not part of it. The image comes in negated, of int8 each bit of it,
        and results but the first stay inside. The second output has one element of each of those,
        corrected for its filters: all are the problem's element at
        :func:`~tvm_edge.runtime.candidates.sample_place`.
    """
    builder = relax.BlockBuilder()
    image = relax.Var("image", relax.TensorType(problem.image.shape, str(problem.image.dtype)))
    convolved = _int8 if workload.is_bytes else _float
    with builder.function("main", [image]):
        with builder.dataflow():
            source: relax.Expr = image
            if sampled:
                negated = relax.op.bitwise_not if workload.is_bytes else relax.op.negative
                source = builder.emit(negated(image))
            results = [convolved(builder, source, workload, problem, i) for i in range(count)]
            if sampled:
                same = _less_offsets if workload.is_bytes else _over_factors
                samples = _samples(builder, results[1:], problem)
                results = [results[0], same(builder, samples, workload, problem, count)]
            outputs = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(outputs)
    return builder.finalize()


def _samples(
    builder: relax.BlockBuilder, results: list[relax.Expr], problem: Operands
) -> relax.Var:
    """Return one element of each result, in a line."""
    place = sample_place(problem.expected)
    axes, ends = list(range(len(place))), [at + 1 for at in place]
    cut = [
        builder.emit(relax.op.strided_slice(result, axes, list(place), ends)) for result in results
    ]
    return builder.emit(relax.op.flatten(builder.emit(relax.op.concat(cut, axis=0))))


# ----------------------------------------------------------------------------------------- floats


def _factor(number: int) -> np.float64:
    """Return a copy's power of two: 1, 1/2, 2, 1/4, 4 and so on, which float16 has, too."""
    power = (number + 1) // 2
    return np.float64(2.0) ** (-power if number % 2 else power)


def _float(
    builder: relax.BlockBuilder,
    image: relax.Expr,
    workload: ConvWorkload,
    problem: Operands,
    number: int,
) -> relax.Var:
    """Emit a copy with bias and ReLU."""
    dtype = str(problem.image.dtype)
    factor = _factor(number).astype(dtype)
    convolved = relax.op.nn.conv2d(
        image,
        const(problem.filters * factor, dtype),
        strides=list(workload.strides),
        padding=list(workload.padding),
        dilation=list(workload.dilation),
        groups=workload.groups,
    )
    bias = const(problem.bias[None, :, None, None] * factor, dtype)
    biased = builder.emit(relax.op.add(builder.emit(convolved), bias))
    return builder.emit(relax.op.nn.relu(biased))


def _over_factors(
    builder: relax.BlockBuilder,
    samples: relax.Var,
    _workload: ConvWorkload,
    problem: Operands,
    count: int,
) -> relax.Var:
    factors = 1 / np.array([_factor(number) for number in range(1, count)])
    factors = const(factors, str(problem.image.dtype))
    return builder.emit(relax.op.multiply(samples, factors))


# ------------------------------------------------------------------------------------------- int8


def _filters(problem: Operands, number: int) -> np.ndarray:
    """Return the filters of a copy."""
    inverted = np.array(_STEP * number % 256, "uint8").view("int8")
    return problem.filters ^ inverted


def _int8(
    builder: relax.BlockBuilder,
    image: relax.Expr,
    workload: ConvWorkload,
    problem: Operands,
    number: int,
) -> relax.Var:
    """Emit a copy with bias, its result in int8, as `relay_passes.quantize` makes of a network."""
    rounding = rounding_of(workload)
    top, left, bottom, right = workload.padding
    if any(workload.padding):
        width = [0, 0, 0, 0, top, bottom, left, right]
        image = builder.emit(relax.op.nn.pad(image, width, "constant", float(rounding.zero)))
    convolved = relax.op.nn.conv2d(
        image,
        const(_filters(problem, number), "int8"),
        strides=list(workload.strides),
        padding=[0, 0, 0, 0],
        dilation=list(workload.dilation),
        groups=workload.groups,
        out_dtype="int32",
    )
    bias = const(problem.bias[None, :, None, None], "int32")
    biased = builder.emit(relax.op.add(builder.emit(convolved), bias))
    # Filters that are quantised by channel have a scale for each.
    scales = const(np.full((1, workload.filters, 1, 1), rounding.scale), "float32")
    real = relax.op.multiply(builder.emit(relax.op.astype(biased, "float32")), scales)
    one, zero = relax.const(1.0, "float32"), relax.const(rounding.zero, "int32")
    return builder.emit(quantize(builder.emit(real), one, zero, rounding.dtype))


def _less_offsets(
    builder: relax.BlockBuilder,
    samples: relax.Var,
    workload: ConvWorkload,
    problem: Operands,
    count: int,
) -> relax.Var:
    rounding, place = rounding_of(workload), sample_place(problem.expected)
    accumulators = [
        convolve_at(problem.image, _filters(problem, i), workload, place, rounding.zero)
        + problem.bias[place[1]]
        for i in range(1, count)
    ]
    offsets = rounding.of(np.array(accumulators)).astype("int32") - int(problem.expected[place])
    whole = builder.emit(relax.op.astype(samples, "int32"))
    return builder.emit(relax.op.subtract(whole, const(offsets, "int32")))
