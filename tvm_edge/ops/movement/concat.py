"""Concatenations on a GPU that their parts can be written into."""

from __future__ import annotations

from tvm import relax, te, topi

from tvm_edge.ops.kernel_site import KernelSite
from tvm_edge.relay_passes.ir.expressions import static_shape

__all__ = ["CONCAT", "lower_concat"]

CONCAT = "tvm_edge.concat"
"""Attribute of kernels that concatenate along axis 1 and do nothing else."""

# Relax's OpPatternKind: no other kernel is fused with it.
_OPAQUE = 8

_VIEWS = frozenset(
    f"relax.{name}" for name in ("expand_dims", "flatten", "reshape", "squeeze", "to_vdevice")
)


def lower_concat(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Make a kernel of its own of a concatenation along axis 1 of one image: it can disappear.

    Others stay as they are: what follows is then fused with the copy.
    """
    parts = call.args[0]
    if isinstance(parts, relax.Var):
        parts = site.builder.lookup_binding(parts)
    if site.spec.has_cpu_cores or not isinstance(parts, relax.Tuple):
        return call
    whole = static_shape(call.ty)
    axis = call.attrs.axis
    if whole is None or len(whole) < 2 or whole[0] != 1 or axis is None:
        return call
    if int(axis) % len(whole) != 1 or len(set(parts.fields)) < len(parts.fields):
        return call
    if not all(_is_computed(site, part) for part in parts.fields):
        return call
    dtype = str(call.ty.dtype)
    given = [
        te.placeholder(list(part.ty.shape), dtype, f"part{i}")
        for i, part in enumerate(parts.fields)
    ]
    result = topi.concatenate(given, 1)
    func = te.create_prim_func([*given, result], "int64")
    func = func.with_attrs({"op_pattern": _OPAQUE, CONCAT: True})
    types = [site.tensor([int(dim) for dim in result.shape], dtype)]
    return site.unbound(func, "concatenate", list(parts.fields), types)


def _is_computed(site: KernelSite, part: relax.Expr) -> bool:
    """Return whether a kernel writes this: no parameter, constant, view, or copy from elsewhere."""
    value = site.builder.lookup_binding(part) if isinstance(part, relax.Var) else None
    if not isinstance(value, relax.Call):
        return False
    return getattr(value.op, "name", "") not in _VIEWS
