"""Tunable parts of a model: its convolutions, and the layouts of its operators."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import tvm

from tvm_edge.compiler.compilation import Compilation
from tvm_edge.compiler.options import Options
from tvm_edge.compiler.pipeline import PIPELINE
from tvm_edge.compiler.placement import Placed, place
from tvm_edge.errors import InputError, PlacementError
from tvm_edge.frontend import ImportedModel, SourceNode, load_model
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.relay_passes.ir.expressions import bindings_of
from tvm_edge.relay_passes.layout.int8_convolution import convolution_at
from tvm_edge.relay_passes.solvers.layout_graph import LayoutGraph, layout_graph
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = ["check_alone", "convolutions_of", "layout_graph_of"]

_LOG = logging.getLogger("tvm_edge.tuning")


def convolutions_of(
    model: Any,
    resolved: ResolvedTarget,
    inputs: Mapping[str, Any] | None = None,
    precision: str = "float32",
) -> dict[ConvWorkload, int]:
    """Count a model's distinct convolutions that have a choice of layouts, in their order.

    `inputs` are options of :func:`~tvm_edge.frontend.load_model`: ``input_shapes`` and others. In
    lower `precision` they are those of a model that stays on its device.
    """
    imported, simple = _simplified(model, resolved, inputs)
    if precision in ("float16", "mixed"):
        options = Options(precision=precision, fallback="none")
        placed = Placed(simple, (resolved.kind,), (0,) * len(imported.inputs), {})
        begun = Compilation(
            imported, resolved, options, module=simple, precision=precision, placed=placed
        )
        simple = PIPELINE.part("LowerPrecision", until="ChooseConvolutions").run(begun).module
    bindings = bindings_of(simple["main"])
    bound = {binding.var: binding.value for binding in bindings}
    tf32 = precision == "tf32"
    found = (convolution_at(b.value, bound, resolved.spec, tf32=tf32) for b in bindings)
    return dict(Counter(filter(None, found)))


def _simplified(
    model: Any,
    resolved: ResolvedTarget,
    inputs: Mapping[str, Any] | None,
) -> tuple[ImportedModel, tvm.IRModule]:
    """Import a model, and run the passes on its operators that come before placement."""
    imported = load_model(model, **(inputs or {}))
    begun = Compilation(imported, resolved, Options(), module=imported.module)
    return imported, PIPELINE.part(until="PlaceOperators").run(begun).module


def check_alone(
    model: Any,
    resolved: ResolvedTarget,
    inputs: Mapping[str, Any] | None = None,
) -> None:
    """Refuse models that a GPU cannot run by itself; warn where ``compile`` would not let it.

    Raises
    ------
    InputError
    """
    if resolved.host is None:
        return
    imported, simple = _simplified(model, resolved, inputs)
    try:
        place(simple, imported, resolved, "none")
    except PlacementError as err:
        raise InputError(
            "graph=True (--graph) chooses the layouts of a model that runs on one device, and on "
            f"{resolved.spec.name} {err}. Leave graph=True out, too",
            name="graph",
            expected=resolved.kind,
        ) from err
    if place(simple, imported, resolved, "auto").kinds != (resolved.kind,):
        _LOG.warning(
            "by cost compile places operators of this model on the CPU beside %s; "
            "fallback='none' keeps all of it there, and takes the layouts that are chosen here",
            resolved.spec.name,
        )


def layout_graph_of(
    model: Any,
    resolved: ResolvedTarget,
    inputs: Mapping[str, Any] | None = None,
) -> tuple[LayoutGraph, Sequence[SourceNode]]:
    """Return the layouts that the operators of a model may have, and the model's nodes."""
    imported, simple = _simplified(model, resolved, inputs)
    return layout_graph(simple["main"], resolved.spec), imported.nodes
