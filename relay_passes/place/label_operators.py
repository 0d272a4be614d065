"""Label operators that leave the GPU for the CPU beside it (ICPP'19 §3.1.2, first of two passes).

The label pass decides; the second pass, :mod:`~tvm_edge.relay_passes.place.insert_copies`, puts a
copy on each edge between devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import tvm
from tvm import relax, tirx

from tvm_edge.errors import PlacementError
from tvm_edge.ops.registry import of_call
from tvm_edge.relay_passes.ir.expressions import all_bindings, bindings_of, is_call
from tvm_edge.relay_passes.ir.locations import node_of
from tvm_edge.relay_passes.ir.loops import LOOP_NEXT, LOOP_STATE

__all__ = [
    "CPU",
    "GPU",
    "Label",
    "Policy",
    "label_operators",
    "label_parameters",
    "node_indices",
    "nodes_of",
    "operands",
]

GPU, CPU = 0, 1
"""Positions of the virtual devices."""


@dataclass(frozen=True)
class Label:
    """Place of an operator, and the reason; `device` is :data:`GPU` or :data:`CPU`."""

    device: int
    reason: str


_ON_TARGET = Label(GPU, "the target is this device")


@dataclass(frozen=True)
class Policy:
    """Meaning of ``fallback=``.

    Attributes
    ----------
    mode : {"list", "none", "error", "named"}
        ``list``: operators that are not known to perform leave the GPU. ``none``: they
        stay. ``error``: nothing may leave. ``named``: as ``none``, and `nodes` leave. Those that a
        GPU cannot run leave in all modes but ``error`` and ``none``, which refuse the model.
    nodes : frozenset[int]
        Nodes of the user's model that must run on the CPU.
    lacking : frozenset[str]
        Types that the GPU cannot calculate with: ``float16``, ``float64``.
    leaving : mapping of relax.Var to str
        Results that are better computed on the CPU, and why.
    kind : {"opencl", "cuda"}
        Of the GPU, for the list.
    """

    mode: Literal["list", "none", "error", "named"] = "list"
    nodes: frozenset[int] = frozenset()
    lacking: frozenset[str] = frozenset()
    leaving: Mapping[relax.Var, str] = field(default_factory=dict)
    kind: str = "opencl"


def node_indices(func: relax.Function) -> list[int | None]:
    """Return for each binding of ``main`` the node of the user's model that it is part of.

    The variable of a node's result is located at the node; bindings before it without a location
    are steps towards it, but for fields of the tuple that another node results in.
    """
    nodes: dict[relax.Var, int | None] = {}
    steps: list[relax.Var] = []
    for binding in bindings_of(func):
        var, value = binding.var, binding.value
        node = node_of(var)
        whole = value.tuple_value if isinstance(value, relax.TupleGetItem) else None
        nodes[var] = node if node is not None else nodes.get(whole)
        if node is not None:
            nodes.update(dict.fromkeys(steps, node))
            steps.clear()
        elif nodes[var] is None:
            steps.append(var)
    return [nodes[binding.var] for binding in bindings_of(func)]


def nodes_of(func: relax.Function) -> dict[relax.Var, int | None]:
    """:func:`node_indices` by variable; what is in a branch is part of the ``If``."""
    nodes: dict[relax.Var, int | None] = {}
    for binding, node in zip(bindings_of(func), node_indices(func), strict=True):
        value = binding.value
        nodes[binding.var] = node
        if isinstance(value, relax.If):
            inside = (*all_bindings(value.true_branch), *all_bindings(value.false_branch))
            nodes.update((step.var, node) for step in inside)
    return nodes


def label_operators(
    func: relax.Function, policy: Policy, node_names: Mapping[int, str]
) -> dict[relax.Var, Label]:
    """Choose a device for the result of every binding of ``main``, those in branches included.

    The result of an ``If`` is on the CPU if both branches end there, and else on the GPU.

    Parameters
    ----------
    func : relax.Function
        Operators not legalised yet, in administrative normal form.
    policy : Policy
    node_names : mapping of int to str
        How the user calls a node, for messages.

    Raises
    ------
    PlacementError
        An operator cannot run on the GPU and may not leave it.
    """
    labels: dict[relax.Var, Label] = {}
    shapes = _feeding_shapes(func)
    partners = _loop_partners(func)
    refused: dict[str, str] = {}
    nodes = nodes_of(func)
    for binding in all_bindings(func.body):
        value, node = binding.value, nodes[binding.var]
        if isinstance(value, relax.Call):
            impossible = _impossible(value, binding.var, policy.lacking)
            state = is_call(value, LOOP_STATE, LOOP_NEXT)
            # What is no operator is a function that a Relax module brings along.
            listed = of_call(value).gpu.why_left_out(policy.kind) if _name(value) else ""
            # What a step starts with is where the next one starts with it.
            both = {binding.var, partners.get(binding.var)}
            if _has_operands(value) and not impossible and shapes & both:
                listed = "it computes a shape, which the host needs"
            label = _ON_TARGET
            if impossible:
                label = Label(CPU, impossible)
            elif node in policy.nodes:
                label = Label(CPU, "named in fallback=")
            elif binding.var in policy.leaving and not state:
                label = Label(CPU, policy.leaving[binding.var])
            elif listed and policy.mode in ("list", "error"):
                label = Label(CPU, listed)
            # Without an operand there is nothing to carry a virtual device to the kernel.
            if label.device == CPU and not _has_operands(value) and not impossible:
                label = _ON_TARGET
            forbidden = policy.mode == "error" or (policy.mode == "none" and impossible)
            if label.device == CPU and forbidden:
                name = node_names.get(-1 if node is None else node, binding.var.name)
                refused[name] = label.reason
            labels[binding.var] = label
        else:
            labels[binding.var] = _follow(value, labels)
    if refused:
        each = ", ".join(f"{name} ({reason})" for name, reason in refused.items())
        raise PlacementError(
            f"{len(refused)} operator{'s' if len(refused) > 1 else ''} cannot stay on the target: "
            f"{each}; use fallback='list' to run them on the CPU"
        )
    return labels


def label_parameters(
    func: relax.Function, labels: Mapping[relax.Var, Label], shared: bool
) -> list[int]:
    """Choose the device of each parameter of ``main``.

    Inputs that both devices read come from the host and stay there: otherwise they would be copied
    to the GPU and back. Where the devices have `shared` memory, the CPU reads tensors of the GPU
    without a copy.
    """
    readers: dict[relax.Var, set[int]] = {param: set() for param in func.params}
    for binding in all_bindings(func.body):
        device = labels[binding.var].device if binding.var in labels else GPU
        for var in operands(binding.value):
            if var in readers:
                readers[var].add(device)
    on_cpu = ({CPU},) if shared else ({CPU}, {CPU, GPU})
    return [CPU if readers[param] in on_cpu else GPU for param in func.params]


def operands(value: relax.Expr) -> list[relax.Var]:
    """Return the tensor variables that an expression reads, those in tuples included.

    An ``If`` reads what its branches result in; their bindings have operands of their own.
    """
    if isinstance(value, relax.Var):
        return [value] if isinstance(value.ty, relax.TensorType | relax.TupleType) else []
    if isinstance(value, relax.Call):
        return [var for arg in value.args for var in operands(arg)]
    if isinstance(value, relax.Tuple):
        return [var for field in value.fields for var in operands(field)]
    if isinstance(value, relax.TupleGetItem):
        return operands(value.tuple_value)
    if isinstance(value, relax.If):
        return operands(value.true_branch.body) + operands(value.false_branch.body)
    return []


def _follow(value: relax.Expr, labels: Mapping[relax.Var, Label]) -> Label:
    """The label of a value that computes nothing: that of what it is made from."""
    if isinstance(value, relax.If):
        branches = (value.true_branch, value.false_branch)
        ends = [_follow(branch.body, labels) for branch in branches]
        return next((end for end in ends if end.device == GPU), ends[0])
    for var in operands(value):
        if var in labels:
            return labels[var]
    return _ON_TARGET


def _name(call: relax.Call) -> str:
    return str(call.op.name) if isinstance(call.op, tvm.ir.Op) else ""


def _has_operands(call: relax.Call) -> bool:
    """Return whether tensors carry a call's virtual device to its kernel; a size has none."""
    return _name(call) != "relax.size" and bool(operands(call))


def _impossible(call: relax.Call, result: relax.Var, lacking: frozenset[str]) -> str:
    """Return the reason why no GPU kernel can compute a call; empty where one can."""
    fitness = of_call(call).gpu
    if fitness.impossible:
        return fitness.impossible
    if not _has_operands(call):
        return ""
    tensors = [result.ty, *(var.ty for var in operands(call))]
    if fitness.static and any(_is_dynamic(var.ty) for var in operands(call)):
        return "its kernel is for one shape, and here that depends on data"
    missing = sorted(lacking & {dtype for ty in tensors for dtype in _dtypes(ty)})
    if missing:
        return f"the device does not calculate in {' or '.join(missing)}"
    return ""


def _dtypes(ty: Any) -> set[str]:
    if isinstance(ty, relax.TupleType):
        return {dtype for field in ty.fields for dtype in _dtypes(field)}
    return {str(ty.dtype)} if isinstance(ty, relax.TensorType) else set()


def _is_dynamic(ty: Any) -> bool:
    """Return whether a tensor's shape is known only in the run: inputs have static shapes."""
    if isinstance(ty, relax.TupleType):
        return any(_is_dynamic(field) for field in ty.fields)
    if not isinstance(ty, relax.TensorType):
        return False
    shape = ty.shape
    return not isinstance(shape, relax.ShapeExpr) or not all(
        isinstance(dim, tirx.IntImm) for dim in shape.values
    )


def _loop_partners(func: relax.Function) -> dict[relax.Var, relax.Var]:
    """Pair each state of a loop with its next value, both ways."""
    pairs = [
        (binding.var, binding.value.args[0])
        for binding in all_bindings(func.body)
        if is_call(binding.value, LOOP_NEXT)
    ]
    return dict([*pairs, *((state, following) for following, state in pairs)])


def _feeding_shapes(func: relax.Function) -> set[relax.Var]:
    """Results that lead to a ``tensor_to_shape`` through nothing but short integer vectors."""
    wanted: set[relax.Var] = set()
    for binding in reversed(list(all_bindings(func.body))):
        value = binding.value
        is_shape = isinstance(value, relax.Call) and _name(value) == "relax.tensor_to_shape"
        if is_shape or (binding.var in wanted and not isinstance(value, relax.Tuple)):
            wanted.update(v for v in operands(value) if _is_shape_like(v.ty))
    return wanted


def _is_shape_like(ty: Any) -> bool:
    return isinstance(ty, relax.TensorType) and ty.ndim <= 1 and "int" in str(ty.dtype)
