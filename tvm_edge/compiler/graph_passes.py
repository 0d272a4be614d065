"""Passes on operators: constants folded, a device, a type, an algorithm and a layout for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm.relax import transform

from tvm_edge.compiler.compilation import Compilation
from tvm_edge.compiler.convolutions import avoid_winograd, choose_convolutions
from tvm_edge.compiler.layouts import LayoutChoice, choose_layouts
from tvm_edge.compiler.options import exceptions_of
from tvm_edge.compiler.passes import (
    CPU_CORES,
    OTHER_DEVICES,
    WINDOWED,
    CompilerPass,
    Pipeline,
    on_module,
)
from tvm_edge.compiler.placement import place
from tvm_edge.compiler.precision_choice import choose_precision
from tvm_edge.errors import InputError
from tvm_edge.relay_passes.layout.block_layout import BlockLayout
from tvm_edge.relay_passes.layout.fuse_attention import FuseAttention
from tvm_edge.relay_passes.layout.narrow_windows import NarrowWindows
from tvm_edge.relay_passes.layout.pack_matrices import PackMatrices
from tvm_edge.relay_passes.memory.split_conv import split_convolutions
from tvm_edge.relay_passes.memory.split_fc import split_dense
from tvm_edge.relay_passes.precision.lower_precision import lower_precision
from tvm_edge.relay_passes.quantize.quantize import Quantize, is_quantized
from tvm_edge.relay_passes.simplify.flush_subnormals import FlushSubnormals
from tvm_edge.relay_passes.simplify.fold_affine import FoldAffine
from tvm_edge.relay_passes.simplify.fold_constant_views import FoldConstantViews
from tvm_edge.relay_passes.simplify.fold_constants import FoldConstants
from tvm_edge.relay_passes.simplify.fold_dequantized import FoldDequantized
from tvm_edge.relay_passes.simplify.fold_padding import FoldPadding
from tvm_edge.relay_passes.simplify.fuse_layer_norm import FuseLayerNorm
from tvm_edge.relay_passes.simplify.unroll_recurrences import UnrollRecurrences

__all__ = ["GRAPH", "OPERATORS", "SMALLER_GROUPS", "node_names", "tuning_logs"]

SMALLER_GROUPS = 64
"""Work-items of a group that a driver runs whatever registers they need: Midgard's fewest."""


def _place(c: Compilation) -> Compilation:
    # Who asks for float16 wants the GPU: the CPU has no kernels of it.
    by_cost = c.precision in ("float32", "tf32")
    fallback, offload = c.options.fallback, c.plan.offload
    placed = place(c.module, c.imported, c.resolved, fallback, by_cost=by_cost, offload=offload)
    return replace(c, module=placed.module, placed=placed)


def _left_the_gpu(c: Compilation) -> bool:
    return c.resolved.host is not None and c.placed.kinds == (c.resolved.cpu.kind,)


def _compile_for_host(c: Compilation) -> Compilation:
    host = c.resolved.host
    assert host is not None, "there is one where operators can leave for it"
    c = replace(c, resolved=host, precision="float32")
    if is_quantized(c.imported.module):  # its int8 is of the type that the host's kernels read
        again = replace(c, module=c.imported.module)
        module = Pipeline(OPERATORS).nested(again).module
        c = replace(c, module=module, placed=replace(c.placed, module=module))
    return c


def _multiplies_float16(c: Compilation) -> bool:
    """Return whether products of float16 are multiplied in float16."""
    return c.precision == "float16" and c.resolved.spec.float16


def _lower_precision(c: Compilation) -> Compilation:
    exceptions = exceptions_of(c.imported, c.options.precision_exceptions)
    spec, choice = c.resolved.spec, None
    if spec.launches_grids and not spec.float16:
        reason = f"{spec.name} does not calculate in float16"
        exceptions = dict.fromkeys(range(len(c.imported.nodes)), reason)
    elif c.precision == "mixed":
        choice = choose_precision(c.module["main"], c.resolved, exceptions)
        exceptions = {**choice.reasons, **exceptions}
    dtype = "bfloat16" if c.precision == "bfloat16" else "float16"
    lowered = lower_precision(c.module, c.resolved.kind, exceptions, dtype)
    if is_quantized(c.imported.module) and dtype not in lowered.types.values():
        _refuse_int8(c)
    return replace(c, module=lowered.module, lowered_types=lowered, precision_choice=choice)


def _refuse_int8(c: Compilation) -> None:
    raise InputError(
        f"precision={c.precision!r} is for float32 products, and those of {c.imported.name} are "
        "int8; leave precision at 'float32', which keeps them as they are, or compile the model "
        "that was quantised",
        name="precision",
        expected="'float32'",
        got=repr(c.precision),
    )


def tuning_logs(c: Compilation) -> Any:
    """Return the records of layouts and merged kernels: none unless all is float32, as theirs."""
    return c.options.tuning_logs if c.precision == "float32" else False


def _choose_convolutions(c: Compilation) -> Compilation:
    choices = choose_convolutions(
        c.module, c.resolved, c.options.tuning_logs, c.configs, c.precision
    )
    return replace(c, choices=choices)


def _avoid_winograd(c: Compilation) -> Compilation:
    return replace(c, choices=avoid_winograd(c.choices, c.module, c.resolved, c.precision))


def _choose_layouts(c: Compilation) -> Compilation:
    if c.layout_plan is not None or len(c.placed.kinds) > 1 or not c.plan.winograd:
        return replace(c, layouts=LayoutChoice(c.layout_plan or None))
    layouts = choose_layouts(c.module, c.resolved, tuning_logs(c), c.imported.nodes)
    return replace(c, layouts=layouts)


def node_names(c: Compilation) -> dict[int, str]:
    return {index: node.name for index, node in enumerate(c.imported.nodes)}


def _split_dense(c: Compilation) -> Compilation:
    split = split_dense(c.module, c.plan.weight_window, node_names(c))
    return replace(c, module=split.module, split_layers=split.layers)


def _has_smaller_groups(c: Compilation) -> bool:
    """Return whether a driver may allow a kernel fewer work-items than its device.

    That is known when the driver has built the kernel, maybe on another machine: OpenCL.
    """
    spec = c.resolved.spec
    large = spec.max_work_group_size > SMALLER_GROUPS
    return c.resolved.facts.limits_kernels and not spec.has_cpu_cores and large


OPERATORS = (
    # Operators stay operators; constants are folded, batch normalisation is gone.
    on_module("simplify", UnrollRecurrences()).when(*OTHER_DEVICES),
    on_module("quantize", lambda c: Quantize(c.resolved.spec), "Quantize").made_optional(),
    on_module("simplify", FoldDequantized()).made_optional(),
    on_module("simplify", FoldConstantViews()).made_optional(),
    on_module("simplify", transform.CanonicalizeBindings()),
    on_module("simplify", FoldPadding()).made_optional(),
    on_module("simplify", FoldAffine()).made_optional(),
    # Dead batch normalisations would be decomposed, and then folded kernel by kernel.
    on_module("simplify", transform.DeadCodeElimination()),
    on_module("simplify", transform.DecomposeOpsForInference()),
    on_module("simplify", transform.CanonicalizeBindings()),
    on_module("simplify", transform.EliminateCommonSubexpr()).made_optional(),
    on_module("simplify", FoldConstants()),
    on_module("simplify", FuseLayerNorm()).made_optional().when(*CPU_CORES),
    on_module("simplify", transform.DeadCodeElimination()),
    on_module("simplify", FlushSubnormals()).made_optional(),
)
"""Operators stay operators; constants are folded, batch normalisation is gone."""

GRAPH = (
    *OPERATORS,
    # A device for each operator, a type, an algorithm and a layout.
    CompilerPass("place", "PlaceOperators", _place),
    CompilerPass("place", "CompileForHost", _compile_for_host).when(
        _left_the_gpu, "all operators left the GPU"
    ),
    CompilerPass("precision", "LowerPrecision", _lower_precision)
    .when(lambda c: c.precision not in ("float32", "tf32"), "float16, mixed or bfloat16")
    .made_optional(),
    CompilerPass(
        "memory",
        "SplitConvolutions",
        lambda c: replace(
            c, module=split_convolutions(c.module, c.plan.conv_window, node_names(c))
        ),
    ).when(*WINDOWED),
    CompilerPass("layout", "ChooseConvolutions", _choose_convolutions),
    CompilerPass("layout", "AvoidWinograd", _avoid_winograd).when(
        lambda c: not c.plan.winograd, "without Winograd's algorithm"
    ),
    CompilerPass("layout", "ChooseLayouts", _choose_layouts).made_optional(),
    CompilerPass("memory", "SplitDense", _split_dense).when(
        lambda c: c.plan.weight_window is not None, "weights streamed"
    ),
    CompilerPass("layout", "KeepForSmallerGroups", lambda c: replace(c, before_layout=c)).when(
        _has_smaller_groups, "OpenCL"
    ),
    on_module(
        "layout",
        lambda c: BlockLayout(
            c.resolved.spec,
            c.choices.configs,
            c.layouts.plan,
            tf32=c.precision == "tf32",
            float16=_multiplies_float16(c),
        ),
        "BlockLayout",
    )
    .made_optional()
    .when(
        lambda c: (
            c.resolved.spec.has_cpu_cores
            or c.layouts.plan is not None
            or c.resolved.spec.tensor_cores is not None
        ),
        "cores of a CPU, layouts of records, or tensor cores",
    ),
    on_module("layout", NarrowWindows()).made_optional().when(*CPU_CORES),
    on_module("layout", lambda c: FuseAttention(c.resolved.spec), "FuseAttention")
    .made_optional()
    .when(*CPU_CORES),
    on_module(
        "layout",
        lambda c: PackMatrices(c.resolved.spec, float16=_multiplies_float16(c)),
        "PackMatrices",
    )
    .made_optional()
    .when(*CPU_CORES),
)
"""Everything that is decided before operators become kernels."""
