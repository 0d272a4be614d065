"""A compilation cut short: what tests look at between its passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm

from tvm_edge.compiler import driver
from tvm_edge.compiler.compilation import Compilation
from tvm_edge.compiler.convolutions import ConvChoices
from tvm_edge.compiler.options import Options
from tvm_edge.compiler.pipeline import PIPELINE
from tvm_edge.compiler.placement import Placed
from tvm_edge.frontend import ImportedModel
from tvm_edge.hardware import ResolvedTarget, resolve_target
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = ["between", "fuse_kernels", "legalized", "lowered", "simplified"]


def lowered(
    model: Any,
    target: Any,
    fallback: str | Sequence[str] = "none",
    *,
    layout_plan: Any = None,
    **options: Any,
) -> Compilation:
    """A model with its instructions and report; without records and merged kernels by default."""
    options = {"parallel_fusion": False, "fallback": fallback, **options}
    return driver.lowered(model, target, Options(**options), layout_plan=layout_plan)


def between(
    mod: tvm.IRModule,
    first: str,
    until: str,
    resolved: ResolvedTarget | None = None,
    *,
    precision: str = "float32",
    configs: Mapping[ConvWorkload, ConvConfig] | None = None,
    kinds: Sequence[str] = (),
) -> tvm.IRModule:
    """A module after the passes from the one called `first` to before the one called `until`."""
    resolved = resolved or resolve_target("llvm")
    placed = Placed(mod, tuple(kinds) or (resolved.kind,), (0,) * len(mod["main"].params), {})
    begun = Compilation(
        ImportedModel("model", mod, (), ()),
        resolved,
        Options(),
        module=mod,
        asked=resolved,
        precision=precision,
        placed=placed,
        choices=ConvChoices(configs or {}),
    )
    return PIPELINE.part(first, until=until).run(begun).module


def simplified(mod: tvm.IRModule, resolved: ResolvedTarget | None = None) -> tvm.IRModule:
    """A module as imported, with its constants folded."""
    return between(mod, "Quantize", "PlaceOperators", resolved)


def legalized(
    mod: tvm.IRModule,
    resolved: ResolvedTarget,
    precision: str = "float32",
    configs: Mapping[ConvWorkload, ConvConfig] | None = None,
) -> tvm.IRModule:
    """A placed module whose operators are calls of kernels."""
    return between(
        mod, "LowerOperators", "ListCopies", resolved, precision=precision, configs=configs
    )


def fuse_kernels(legal: tvm.IRModule, resolved: ResolvedTarget) -> tvm.IRModule:
    """A legalised module with one kernel for each group, which is checked to be on one device."""
    return between(legal, "TraceNodes", "CalculateInFloat32", resolved)
