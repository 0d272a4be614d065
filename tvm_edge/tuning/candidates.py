"""One configuration of a convolution as code that can be checked and timed on its device.

On a CPU that is the bare kernel on packed operands. A GPU's may be several kernels, whose launches
and intermediate results belong to its time: there it is a model that ``compile`` makes, with the
convolution in it several times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_edge.compiler.driver import compile_with
from tvm_edge.hardware import ResolvedTarget, resolve_target
from tvm_edge.schedules import cpu
from tvm_edge.schedules.blocked import ConvWorkload, conv2d, filled, input_block, pack_filters
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.winograd import conv2d_winograd, transform_filters
from tvm_edge.tuning.problem import Problem

__all__ = ["Candidate", "Shared", "build_candidate", "repeated_convolution"]

# Filters are rotated through so many bytes, about those of a network: what the last run of a
# network read is in no cache of its own by the next.
_COLD_BYTES = 96 << 20
_MAX_COPIES = 64

# On a GPU: copies of the convolution in the model, each with filters of its own.
_MOST_LAYERS, _LEAST_LAYERS = 6, 3
_LAYERS_BYTES = 32 << 20

# Launches that may wait in a queue: drivers of phones give up beyond a few thousand.
_LAUNCHES_IN_FLIGHT = 600


Shared = dict[tuple[str, int, int], list[Any]]
"""Packed filters by algorithm, Winograd tile and block, as often as caches ask for."""


@dataclass(frozen=True)
class Candidate:
    """Code of one configuration.

    Attributes
    ----------
    error : callable
        Runs it and returns the error of its result, relative to the largest value.
    seconds : callable
        Runs it for about as long as asked, in seconds, and returns the mean of one convolution.
    """

    error: Callable[[], float]
    seconds: Callable[[float], float]


def build_candidate(
    workload: ConvWorkload,
    config: ConvConfig,
    problem: Problem,
    target: Any,
    shared: Shared,
) -> Candidate:
    """Generate code for a configuration.

    Parameters
    ----------
    workload : ConvWorkload
    config : ConvConfig
        Of its space on the device.
    problem : Problem
    target : str or dict
        A device of this machine.
    shared : dict
        What candidates of the same problem have in common; empty for the first.
    """
    resolved = resolve_target(target)
    if resolved.kind == "llvm":
        return _on_cpu(workload, config, problem, resolved, shared)
    return _on_gpu(workload, config, problem, target)


# ------------------------------------------------------------------------------------------ CPU


def _on_cpu(
    workload: ConvWorkload,
    config: ConvConfig,
    problem: Problem,
    resolved: ResolvedTarget,
    shared: Shared,
) -> Candidate:
    func, shapes = _kernel(workload, config)
    scheduled = cpu.schedule(func, resolved.spec).func.with_attr("global_symbol", "candidate")
    library = tvm.compile(tvm.IRModule({"candidate": scheduled}), target=resolved.target)
    function = library["candidate"]
    block, depth = config.block, shapes[0][-1]
    image = tvm.runtime.tensor(_packed(problem.image, depth))
    bias = tvm.runtime.tensor(_packed(problem.bias[None, :, None, None], block))
    result = tvm.runtime.empty(shapes[3], "float32")

    def filters() -> list[Any]:
        layout = (config.algorithm, config.m, block)
        if layout not in shared:
            if config.algorithm == "winograd":
                packed = transform_filters(problem.filters, config.m, block)
            else:
                inner = 1 if workload.depthwise else depth
                packed = pack_filters(problem.filters, inner, block, workload.groups)
            copies = max(1, min(_MAX_COPIES, _COLD_BYTES // packed.nbytes))
            shared[layout] = [tvm.runtime.tensor(packed) for _ in range(copies)]
        return shared[layout]

    def error() -> float:
        result.copyfrom(np.full(shapes[3], np.nan, "float32"))
        function(image, filters()[-1], bias, result)
        found = result.numpy()
        unpacked = found.transpose(0, 1, 4, 2, 3).reshape(found.shape[0], -1, *found.shape[2:4])
        return problem.error(unpacked[:, : workload.filters])

    def seconds(least: float) -> float:
        rotated = cycle(filters())
        runs, elapsed, start = 0, 0.0, perf_counter()
        while not runs or elapsed < least:
            function(image, next(rotated), bias, result)
            runs += 1
            elapsed = perf_counter() - start
        return elapsed / runs

    return Candidate(error, seconds)


def _packed(image: np.ndarray, block: int) -> np.ndarray:
    """``[N, C, H, W]`` as ``[N, C/b, H, W, b]``, filled up with the last channel."""
    missing = filled(image.shape[1], block) - image.shape[1]
    whole = np.concatenate([image, np.repeat(image[:, -1:], missing, axis=1)], axis=1)
    blocks = whole.reshape(image.shape[0], -1, block, *image.shape[2:])
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 4, 2))


def _kernel(
    workload: ConvWorkload, config: ConvConfig
) -> tuple[tirx.PrimFunc, tuple[tuple[int, ...], ...]]:
    """A convolution with bias and ReLU, and the shapes of its arguments."""
    block = config.block
    depth = input_block(workload, block)
    blocks = filled(workload.filters, block) // block
    channels = filled(workload.channels, depth) // depth
    shape = (workload.batch, channels, workload.height, workload.width, depth)
    image = te.placeholder(shape, "float32", "image")
    if config.algorithm == "winograd":
        size = (config.m + 2) ** 2
        filters = te.placeholder((size, blocks, channels, depth, block), "float32", "filters")
        sums = conv2d_winograd(image, filters, config.m, workload.padding, config.knobs)
    else:
        own = 1 if workload.depthwise else channels // workload.groups
        inner = 1 if workload.depthwise else depth
        filters = te.placeholder(
            (blocks, own, *workload.kernel, inner, block), "float32", "filters"
        )
        sums = conv2d(
            image,
            filters,
            workload.strides,
            workload.padding,
            workload.dilation,
            workload.groups,
            config.knobs,
        )
    bias = te.placeholder((1, blocks, 1, 1, block), "float32", "bias")
    zero = tirx.const(0.0, "float32")
    result = te.compute(
        sums.shape,
        lambda n, o, y, x, v: te.max(sums[n, o, y, x, v] + bias[0, o, 0, 0, v], zero),
        "result",
    )
    arguments = (image, filters, bias, result)
    shapes = tuple(tuple(int(dim) for dim in tensor.shape) for tensor in arguments)
    return te.create_prim_func(list(arguments)), shapes


# ------------------------------------------------------------------------------------------ GPU


def _on_gpu(workload: ConvWorkload, config: ConvConfig, problem: Problem, target: Any) -> Candidate:
    nbytes = max(problem.filters.nbytes, 1)
    layers = max(_LEAST_LAYERS, min(_MOST_LAYERS, _LAYERS_BYTES // nbytes))
    model = compile_with(
        repeated_convolution(workload, problem, layers),
        target,
        {workload: config},
        fallback="none",
    )
    launches = 2 * len(model.report.kernels)  # a kernel whose sums are in parts is two
    inputs = {"image": problem.image}

    def error() -> float:
        results = model.run(inputs).values()
        return max(problem.error(result / 2**i) for i, result in enumerate(results))

    def seconds(least: float) -> float:
        one = model.seconds_in_a_row(inputs, 1)
        most = max(1, _LAUNCHES_IN_FLIGHT // launches)
        runs = max(1, min(most, int(least / one)))
        return model.seconds_in_a_row(inputs, runs) / layers

    return Candidate(error, seconds)


def repeated_convolution(workload: ConvWorkload, problem: Problem, count: int) -> tvm.IRModule:
    """A model that convolves one image `count` times, each time with filters of its own.

    The filters are those of the problem times powers of two, and so, exactly, are the results.
    """
    builder = relax.BlockBuilder()
    image = relax.Var("image", relax.TensorType(problem.image.shape, "float32"))
    with builder.function("main", [image]):
        results = []
        with builder.dataflow():
            for i in range(count):
                sums = relax.op.nn.conv2d(
                    image,
                    relax.const(problem.filters * np.float32(2**i)),
                    strides=list(workload.strides),
                    padding=list(workload.padding),
                    dilation=list(workload.dilation),
                    groups=workload.groups,
                )
                bias = relax.const(problem.bias[None, :, None, None] * np.float32(2**i))
                biased = builder.emit(relax.op.add(builder.emit(sums), bias))
                results.append(builder.emit(relax.op.nn.relu(biased)))
            outputs = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(outputs)
    return builder.finalize()
