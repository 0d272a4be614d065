"""Candidate: a configuration of a convolution as code, to be checked and timed on its device.

On a CPU it is the bare kernel on packed operands. On a GPU a convolution may be several kernels,
whose launches and intermediate results belong to its latency: there it is a model that ``compile``
makes, with the convolution in it several times.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from tvm_edge.compiler.driver import compile_with
from tvm_edge.hardware import DeviceSpec, ResolvedTarget, resolve_target
from tvm_edge.lowering.linker import find_linker
from tvm_edge.lowering.object_files import link_library
from tvm_edge.native import kernels_on_pool
from tvm_edge.relay_passes.precision.calculate_in_float32 import calculate_in_float32
from tvm_edge.relay_passes.solvers.layout_graph import LayoutPlan
from tvm_edge.runtime import CompiledModel
from tvm_edge.runtime.candidates import (
    Candidate,
    Operands,
    kernel_candidate,
    model_candidate,
)
from tvm_edge.schedules import cpu
from tvm_edge.schedules.base import PRECISION
from tvm_edge.schedules.blocked import conv2d, filled, input_block, pack_filters
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.float16 import widened
from tvm_edge.schedules.gpu.packed import conv2d_tensors
from tvm_edge.schedules.gpu.tensor_space import on_tensor_cores
from tvm_edge.schedules.layouts import block_sizes
from tvm_edge.schedules.winograd import conv2d_winograd, transform_filters
from tvm_edge.tuning.int8_kernel import int8_tensors, packed_int8_filters
from tvm_edge.tuning.repeat_convolution import repeat_convolution
from tvm_edge.tuning.tunable import layout_graph_of

__all__ = [
    "Exported",
    "Shared",
    "build_candidate",
    "convolution_function",
    "export_candidate",
]

# On a GPU: copies of the convolution in the model, each with filters of its own. A run costs the
# host some 30 µs: of kernels of 2 µs, replayed as a CUDA graph, so many are needed that the host's
# time does not count. Elsewhere the host launches every kernel, in a network as here.
_MOST_LAYERS = {"cuda": 24}
_MOST_LAYERS_ELSEWHERE, _LEAST_LAYERS = 6, 3
_LAYERS_BYTES = 32 << 20


Shared = dict[str, tuple[Operands, list[Any]]]
"""Packed operands by layout, with as many copies of the filters as caches make necessary."""


@dataclass(frozen=True)
class Exported:
    """Candidate in files, for another machine.

    Attributes
    ----------
    library, operands : Path
    shape : tuple of int
        Of a kernel's result; empty where the library is a model's artifact.
    """

    library: Path
    operands: Path
    shape: tuple[int, ...]


def build_candidate(
    workload: ConvWorkload,
    config: ConvConfig,
    problem: Operands,
    target: Any,
    shared: Shared,
) -> Candidate:
    """Generate code for a configuration.

    Parameters
    ----------
    workload : ConvWorkload
    config : ConvConfig
        Of its space on the device.
    problem : Operands
        NCHW.
    target : str or dict
        A device of this machine.
    shared : dict
        Operands that candidates of one problem share; empty for the first.
    """
    resolved = resolve_target(target)
    if resolved.host is not None:
        model = _model(workload, config, problem, target)
        return model_candidate(model, problem.image, problem.expected)
    library, shapes = _kernel(workload, config, resolved)
    layout = _layout(config)
    if layout not in shared:
        operands = _operands(workload, config, problem, shapes)
        shared[layout] = operands, operands.filters_in_turn()
    with kernels_on_pool():
        function = library["candidate"]
    return kernel_candidate(function, *shared[layout], shapes[3])


def export_candidate(
    workload: ConvWorkload,
    config: ConvConfig,
    problem: Operands,
    target: Any,
    host: Any,
    path: Path,
) -> Exported:
    """Generate code for a configuration, for a device of another machine.

    Parameters
    ----------
    workload, config, problem
        As for :func:`build_candidate`.
    target, host
        As for :func:`tvm_edge.compile`.
    path : Path
        Where the library goes. Operands go beside it, once for all candidates of this problem
        that have them in the same layout.

    Raises
    ------
    MissingDependencyError
        There is no linker for that machine's code.
    """
    resolved = resolve_target(target, host)
    if resolved.host is not None:
        _model(workload, config, problem, target, host).export(path)
        return Exported(path, _saved(problem, path.with_name("model.npz")), ())
    library, shapes = _kernel(workload, config, resolved)
    link_library(library, path, find_linker(resolved.architecture))
    saved = path.with_name(f"{_layout(config)}.npz")
    if not saved.exists():
        _saved(_operands(workload, config, problem, shapes), saved)
    return Exported(path, saved, shapes[3])


def _saved(operands: Operands, path: Path) -> Path:
    """Save operands unless they are there; other processes may write the same file meanwhile."""
    if not path.exists():
        own = path.with_name(f".{path.stem}-{os.getpid()}.npz")
        operands.save(own)
        own.replace(path)
    return path


# ------------------------------------------------------------------------------------------ CPU


def _kernel(
    workload: ConvWorkload, config: ConvConfig, resolved: ResolvedTarget
) -> tuple[Any, tuple[tuple[int, ...], ...]]:
    """Return code with one function, ``candidate``, and the shapes of its arguments."""
    func, shapes = convolution_function(workload, config, resolved.spec)
    scheduled = cpu.schedule(func, resolved.spec).func.with_attr("global_symbol", "candidate")
    module = tvm.IRModule({"candidate": scheduled})
    return tvm.compile(module, target=resolved.target), shapes


def _layout(config: ConvConfig) -> str:
    """Name the layout of the operands, which candidates of a problem with the same name share."""
    return f"{config.algorithm}-{config.m}-{config.block}"


def _operands(
    workload: ConvWorkload,
    config: ConvConfig,
    problem: Operands,
    shapes: tuple[tuple[int, ...], ...],
) -> Operands:
    if not config.block:
        return Operands(
            problem.image, problem.filters, problem.bias[None, :, None, None], problem.expected
        )
    block, depth = config.block, shapes[0][-1]
    if workload.is_bytes:
        filters = packed_int8_filters(workload, problem.filters, shapes[1][-1])
    elif config.algorithm == "winograd":
        filters = transform_filters(problem.filters, config.m, block)
    else:
        inner = 1 if workload.depthwise else depth
        filters = pack_filters(problem.filters, inner, block, workload.groups)
    return Operands(
        _packed(problem.image, depth),
        filters,
        _packed(problem.bias[None, :, None, None], block),
        problem.expected,
    )


def _packed(image: np.ndarray, block: int) -> np.ndarray:
    """Pack ``[N, C, H, W]`` to ``[N, C/b, H, W, b]``, filled up with the last channel."""
    missing = filled(image.shape[1], block) - image.shape[1]
    whole = np.concatenate([image, np.repeat(image[:, -1:], missing, axis=1)], axis=1)
    blocks = whole.reshape(image.shape[0], -1, block, *image.shape[2:])
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 4, 2))


def convolution_function(
    workload: ConvWorkload, config: ConvConfig, spec: DeviceSpec
) -> tuple[tirx.PrimFunc, tuple[tuple[int, ...], ...]]:
    """Return a convolution with its epilogue, and the shapes of its arguments.

    Parameters
    ----------
    workload : ConvWorkload
    config : ConvConfig
    spec : DeviceSpec
        The CPU.
    """
    if not config.block:
        return _plain_function(workload)
    if workload.is_bytes:
        return _finished(int8_tensors(workload, config.knobs, spec))
    block = config.block
    depth = input_block(workload, block)
    blocks = filled(workload.filters, block) // block
    channels = filled(workload.channels, depth) // depth
    shape = (workload.batch, channels, workload.height, workload.width, depth)
    dtype = "float16" if workload.dtype == "float16" else "float32"
    image = te.placeholder(shape, dtype, "image")
    if config.algorithm == "winograd":
        size = (config.m + 2) ** 2
        filters = te.placeholder((size, blocks, channels, depth, block), dtype, "filters")
        convolved = conv2d_winograd(image, filters, config.m, workload.padding, config.knobs)
    else:
        own = 1 if workload.depthwise else channels // workload.groups
        inner = 1 if workload.depthwise else depth
        filters = te.placeholder((blocks, own, *workload.kernel, inner, block), dtype, "filters")
        convolved = conv2d(
            image,
            filters,
            workload.strides,
            workload.padding,
            workload.dilation,
            workload.groups,
            config.knobs,
        )
    bias = te.placeholder((1, blocks, 1, 1, block), "float32", "bias")
    func, shapes = _with_epilogue(image, filters, bias, convolved)
    if dtype == "float16":
        func = calculate_in_float32(func).with_attr(PRECISION, "float16")
    return func, shapes


def _plain_function(
    workload: ConvWorkload,
) -> tuple[tirx.PrimFunc, tuple[tuple[int, ...], ...]]:
    """Return a convolution in NCHW, as the operator is defined, with its epilogue."""
    image, filters, convolved = conv2d_tensors(workload, packed=False)
    bias = te.placeholder((1, workload.filters, 1, 1), "float32", "bias")
    return _with_epilogue(image, filters, bias, convolved)


def _with_epilogue(
    image: te.Tensor, filters: te.Tensor, bias: te.Tensor, convolved: te.Tensor
) -> tuple[tirx.PrimFunc, tuple[tuple[int, ...], ...]]:
    zero = tirx.const(0.0, "float32")

    def element(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, *v: tirx.Expr) -> tirx.Expr:
        made = te.max(widened(convolved(n, o, y, x, *v)) + bias(0, o, 0, 0, *v), zero)
        return tirx.Cast("float16", made) if convolved.dtype == "float16" else made

    return _finished([image, filters, bias, te.compute(convolved.shape, element, "result")])


def _finished(
    tensors: Sequence[te.Tensor],
) -> tuple[tirx.PrimFunc, tuple[tuple[int, ...], ...]]:
    """Return the function of these arguments, and their shapes."""
    shapes = tuple(tuple(int(dim) for dim in tensor.shape) for tensor in tensors)
    return te.create_prim_func(list(tensors)), shapes


# ------------------------------------------------------------------------------------------ GPU


def _model(
    workload: ConvWorkload, config: ConvConfig, problem: Operands, target: Any, host: Any = None
) -> CompiledModel:
    nbytes = max(problem.filters.nbytes, 1)
    resolved = resolve_target(target, host)
    most = _MOST_LAYERS.get(resolved.kind, _MOST_LAYERS_ELSEWHERE)
    layers = max(_LEAST_LAYERS, min(most, _LAYERS_BYTES // nbytes))
    model = repeat_convolution(workload, problem, layers, sampled=True)
    plan = None
    in_units = on_tensor_cores(workload, resolved.spec)
    if config.block and not in_units and not resolved.spec.has_cpu_cores:
        plan = _plan(model, config, resolved)
    return compile_with(
        model,
        target,
        {workload: config},
        host=host,
        fallback="none",
        precision="tf32" if workload.dtype == "tf32" else "float32",
        # The copies do not depend on each other, and in one launch would be another kernel.
        parallel_fusion=False,
        layout_plan=plan,
    )


def _plan(model: tvm.IRModule, config: ConvConfig, resolved: ResolvedTarget) -> LayoutPlan:
    """Plan all convolutions of a model in channel blocks, and all else that saves a transform."""
    graph, _ = layout_graph_of(model, resolved)
    known = (0, *block_sizes(resolved.spec))
    costs = [{(a, b): float(a != b) for a in n.layouts for b in known} for n in graph.nodes]
    # Epilogues are part of the kernel before them, as in a network.
    seconds = [[0.0 if layout else 1e-3 for layout in node.layouts] for node in graph.nodes]
    problem = graph.problem(seconds, costs)
    layouts = problem.with_given(dict.fromkeys(graph.convolutions, config.block)).solve().layouts
    return LayoutPlan(graph.digest, layouts, dict.fromkeys(graph.convolutions, config))
