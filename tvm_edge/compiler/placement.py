"""Decide which operators leave a GPU, and say so in the report."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_edge.compiler.auto_placement import cheaper_on_cpu
from tvm_edge.compiler.options import check_overrides
from tvm_edge.frontend import ImportedModel
from tvm_edge.hardware import DeviceSpec, ResolvedTarget
from tvm_edge.relay_passes.instructions.shared_copies import shared_copies
from tvm_edge.relay_passes.instructions.split_reads import late_reads
from tvm_edge.relay_passes.ir.expressions import all_bindings, bindings_of
from tvm_edge.relay_passes.ir.vdevices import vdevice_of, vdevices_of
from tvm_edge.relay_passes.place.gpu_work_first import gpu_work_first
from tvm_edge.relay_passes.place.insert_copies import insert_copies
from tvm_edge.relay_passes.place.label_operators import (
    CPU,
    GPU,
    Label,
    Policy,
    label_operators,
    label_parameters,
    nodes_of,
)

__all__ = ["Placed", "copies_of", "place"]


@dataclass(frozen=True)
class Placed:
    """A module whose operators know their device.

    Attributes
    ----------
    module : IRModule
        With virtual devices if there are several.
    kinds : tuple[str, ...]
        Kinds of device, in the order of the virtual devices; the host's alone where costs leave
        the GPU nothing.
    inputs : tuple[int, ...]
        The device of each input.
    reasons : dict[int, str]
        Why a node of the user's model is where it is.
    """

    module: tvm.IRModule
    kinds: tuple[str, ...]
    inputs: tuple[int, ...]
    reasons: dict[int, str]


def place(
    module: tvm.IRModule,
    model: ImportedModel,
    resolved: ResolvedTarget,
    fallback: str | Sequence[str],
    by_cost: bool = True,
    offload: Mapping[int, str] | None = None,
) -> Placed:
    """Place the operators of a model whose graph is simplified and not legalised.

    ``fallback="auto"`` goes by the list where the model has branches: costs hold for operators that
    every run executes. It also does where `by_cost` is not set: costs are of float32. The nodes in
    `offload` are on the CPU for the reasons given there.

    Raises
    ------
    PlacementError
        ``fallback`` names what the model does not have, or forbids what has to leave the target.
    """
    if not isinstance(fallback, str):
        check_overrides(model, fallback)
    if resolved.host is None:
        return Placed(module, (resolved.kind,), (0,) * len(model.inputs), {})
    main = module["main"]
    names = {index: node.name for index, node in enumerate(model.nodes)}
    policy = replace(_policy(model, fallback), lacking=_lacking(resolved.spec), kind=resolved.kind)
    leaving = _results_of(main, offload or {})
    policy = replace(policy, leaving=leaving)
    by_cost = by_cost and fallback == "auto" and not _has_branches(main)
    if by_cost:
        policy = replace(policy, mode="named")
        forced = label_operators(main, policy, names)
        policy = replace(policy, leaving={**cheaper_on_cpu(main, forced, resolved), **leaving})
    labels = label_operators(main, policy, names)
    reasons = _reasons(main, labels)
    if all(label.device == GPU for label in labels.values()):
        return Placed(module, (resolved.kind,), (0,) * len(model.inputs), reasons)
    if by_cost and all(label.device == CPU for label in labels.values()):
        return Placed(module, (resolved.host.kind,), (0,) * len(model.inputs), reasons)
    parameters = label_parameters(main, labels, "read" in resolved.shared)
    targets = [resolved.target, resolved.host.target]
    placed = gpu_work_first(insert_copies(module, labels, parameters, targets))
    return Placed(placed, (resolved.kind, resolved.host.kind), tuple(parameters), reasons)


def _results_of(main: relax.Function, reasons: Mapping[int, str]) -> dict[relax.Var, str]:
    return {
        var: reasons[node]
        for var, node in nodes_of(main).items()
        if node is not None and node in reasons
    }


def _has_branches(main: relax.Function) -> bool:
    bindings = bindings_of(main)
    return any(isinstance(binding.value, relax.If) for binding in bindings)


def _lacking(spec: DeviceSpec) -> frozenset[str]:
    native = {"float16": spec.float16, "float64": spec.float64}
    return frozenset(dtype for dtype, has in native.items() if not has)


def _policy(model: ImportedModel, fallback: str | Sequence[str]) -> Policy:
    if fallback in ("auto", "list"):
        return Policy("list")
    if fallback == "none":
        return Policy("none")
    if fallback == "error":
        return Policy("error")
    named = frozenset(
        index
        for index, node in enumerate(model.nodes)
        if node.name in fallback or node.op_type in fallback
    )
    return Policy("named", named)


def _reasons(main: relax.Function, labels: dict[relax.Var, Label]) -> dict[int, str]:
    """The reason of each node; of the step on the CPU if some are."""
    reasons: dict[int, Label] = {}
    for var, node in nodes_of(main).items():
        label = labels[var]
        if node is not None and (node not in reasons or label.device == CPU):
            reasons[node] = label
    return {node: label.reason for node, label in reasons.items()}


def copies_of(
    mod: tvm.IRModule, model: ImportedModel, shared: Collection[str]
) -> tuple[dict[str, Any], ...]:
    """The tensors that change their device in a run, in order.

    Parameters
    ----------
    mod : IRModule
        With ``to_vdevice`` in ``main``, whose operators are kernels.
    model : ImportedModel
    shared : collection of {"read", "write"}
        Accesses of the host to tensors of the device where they are.
    """
    devices = vdevices_of(mod)
    main = mod["main"]
    if not devices:
        return ()
    nodes = nodes_of(main)
    inputs = dict(zip(main.params, [spec.name for spec in model.inputs], strict=True))
    uncopied = shared_copies(mod, shared)
    late = late_reads(mod)
    found = []
    for binding in all_bindings(main.body):
        value = binding.value
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            continue
        if value.op.name != "relax.to_vdevice":
            continue
        source = value.args[0]
        node = nodes.get(source) if isinstance(source, relax.Var) else None
        name = inputs.get(source) or (model.nodes[node].name if node is not None else str(source))
        origin = vdevice_of(source.ty) or devices[0]
        destination = vdevice_of(value.ty) or devices[0]
        shape = [_length(dim) for dim in value.ty.shape]
        lengths = [dim for dim in shape if isinstance(dim, int)]
        whole = len(lengths) == len(shape)
        size = math.prod(lengths) * tvm.DataType(str(value.ty.dtype)).itemsize if whole else 0
        found.append(
            {
                "tensor": name,
                "shape": shape,
                "dtype": str(value.ty.dtype),
                "source": str(origin.target.kind.name),
                "destination": str(destination.target.kind.name),
                "bytes": size,
                "zero_copy": binding.var in uncopied,
                "overlapped": binding.var in late,
            }
        )
    return tuple(found)


def _length(dim: tirx.Expr) -> int | str:
    return int(dim) if isinstance(dim, tirx.IntImm) else str(dim)
