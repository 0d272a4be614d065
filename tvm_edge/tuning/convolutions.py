"""A short search: the heuristic's best candidates of each convolution, measured once.

Each distinct convolution of a network is built in the forms that its
:class:`~tvm_edge.schedules.conv_config.ConfigSpace` ranks first and timed on this machine, with
filters that are in no cache, as they are when a network runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from tvm_edge.compiler.driver import convolutions_of
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.runtime.threads import configure_pool, resolve_num_threads
from tvm_edge.schedules import cpu
from tvm_edge.schedules.blocked import ConvWorkload, conv2d, filled, input_block
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.cpu.algorithm import config_space
from tvm_edge.schedules.winograd import conv2d_winograd

__all__ = ["measure_convolutions"]

_LOG = logging.getLogger("tvm_edge.tuning")

# Filters are rotated through so many bytes, about those of a network: what the last run of a
# network read is in no cache of its own by the next.
_COLD_BYTES = 96 << 20
_MAX_COPIES = 64
_ROUNDS = 5
_SECONDS = 0.02  # of one timing


def measure_convolutions(
    model: Any,
    target: Any = "llvm",
    *,
    count: int = 4,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    num_threads: int | None = None,
    progress: Callable[[int, int, ConvWorkload], None] | None = None,
) -> dict[ConvWorkload, ConvConfig]:
    """Measure candidates for every convolution of a model on this machine.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto, tvm.IRModule or ``"zoo:NAME"``
    target : str, dict or tvm.target.Target
        A CPU that can run what is built: this machine's.
    count : int
        Candidates of each algorithm and layout; about 1 s each, most of it code generation.
    input_shapes : mapping of str to sequence of int, optional
        Shapes of inputs with dynamic dimensions.
    num_threads : int, optional
        Threads to measure with, those the model will run on; default as for ``compile``.
    progress : callable, optional
        Called with the number of convolutions done, of all, and the next one.

    Returns
    -------
    dict of ConvWorkload to ConvConfig
        The fastest configuration of each distinct convolution that can be blocked.
    """
    configure_pool(resolve_num_threads(num_threads))  # TVM's own default is half the cores
    resolved = resolve_target(target)
    workloads = convolutions_of(model, resolved, input_shapes)
    chosen = {}
    for done, workload in enumerate(workloads):
        if progress is not None:
            progress(done, len(workloads), workload)
        configs = [
            config
            for config in config_space(workload, resolved.spec).top(count)
            if config.block == resolved.spec.lanes()
        ]
        if len(configs) > 1:
            chosen[workload] = _fastest(workload, configs, resolved.target, resolved.spec)
    return chosen


def _fastest(
    workload: ConvWorkload,
    configs: Sequence[ConvConfig],
    target: tvm.target.Target,
    spec: DeviceSpec,
) -> ConvConfig:
    functions = {}
    arguments = {}
    for number, config in enumerate(configs):
        func, shapes = _kernel(workload, config)
        name = f"candidate{number}"
        scheduled = cpu.schedule(func, spec).func
        functions[name] = scheduled.with_attr("global_symbol", name)
        arguments[name] = shapes
    library = tvm.compile(tvm.IRModule(functions), target=target)
    random = np.random.default_rng(0)
    runs = {}
    for name, (image, filters, bias, result) in arguments.items():
        nbytes = 4 * int(np.prod(filters))
        copies = max(1, min(_MAX_COPIES, _COLD_BYTES // nbytes))
        tensors = [
            tvm.runtime.tensor(random.standard_normal(shape, dtype="float32"))
            for shape in (image, bias, result)
        ]
        rotated = [
            tvm.runtime.tensor(random.standard_normal(filters, dtype="float32"))
            for _ in range(copies)
        ]
        runs[name] = (library[name], tensors, cycle(rotated))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_ROUNDS):  # all candidates in each round: a disturbance meets all of them
        for name, run in runs.items():
            seconds[name].append(_time(*run))
    best = min(seconds, key=lambda name: median(seconds[name]))
    _LOG.info("%s: %s", workload, {n: f"{median(s) * 1e6:.0f} us" for n, s in seconds.items()})
    return configs[int(best.removeprefix("candidate"))]


def _time(function: Any, tensors: Sequence[Any], rotated: Iterator[Any]) -> float:
    image, bias, result = tensors
    runs = 0
    start = perf_counter()
    while (elapsed := perf_counter() - start) < _SECONDS:
        function(image, next(rotated), bias, result)
        runs += 1
    return elapsed / runs


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
