"""Members of composed kernels as functions of their own, until their launches are merged.

The cells of a network have the same few kernels, in groups that are all different. A member is
lowered once, and not once for each of the kernels that it is a member of, nor again where it is
launched alone as well. Kernels for a CPU are lowered one by one, each with members of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_edge.lowering.argument_checks import MADE
from tvm_edge.lowering.parallel_members import PARALLEL
from tvm_edge.schedules.grid import GRID, sequence

__all__ = ["OutlineMembers", "with_members"]

_OUTLINED = "tvm_edge.outlined"
"""Attribute of a function that is a member of others, and that nobody calls."""

_MEMBERS = "tvm_edge.members"
"""Attribute of a composed kernel: the names of its members."""

_GIVEN = "tvm_edge.given"
"""Attribute of a composed kernel: for each member which of the kernel's parameters it is given."""

# What is said of a kernel and not of its members.
_OWN = (PARALLEL, MADE, "global_symbol")

# What `compose` says of every kernel, for passes before these.
_COMPOSED = ("op_pattern", "tirx.is_scheduled")

# Around the statements of kernels that were written with `schedules.emit`.
_TRANSPARENT = ("kernel",)


@tvm.transform.module_pass(opt_level=0, name="OutlineMembers")
class OutlineMembers:
    """Make a function of each member of composed kernels, one of all that are the same.

    A kernel that is a member of others and is called by itself, too, becomes one with that member.

    Runs first of all; :func:`with_members` takes back what has become of them.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        members = _Members(mod)
        for gvar, func in mod.functions_items():
            if _has(func, PARALLEL):
                updated.update_func(gvar, members.outlined(func))
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and (alone := members.called(func)) is not None:
                updated.update_func(gvar, alone)
        for gvar, func in members.functions:
            updated.update_func(gvar, func)
        return updated


class _Members:
    """The members of a module's kernels."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.functions: list[tuple[ir.GlobalVar, tirx.PrimFunc]] = []
        self._names = {str(gvar.name_hint) for gvar in mod.get_global_vars()}
        self._by_body: dict[tirx.Stmt, tuple[str, tirx.PrimFunc]] = {}
        self._by_hash: dict[int, list[tuple[str, tirx.PrimFunc]]] = {}

    def outlined(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """A composed kernel without what its members do."""
        attrs = {str(key): value for key, value in func.attrs.items() if key not in _OWN}
        place = {var: number for number, var in enumerate(func.params)}
        names: list[str] = []
        given: list[list[int]] = []
        for part in func.body.block.body.seq:
            *params, body = part.body.seq
            member = tirx.PrimFunc([param.buffer for param in params], body)
            names.append(self._name_of(member.with_attrs(attrs)))
            given.append([place[param.data.args[0]] for param in params])
        return _calling(func, names, given)

    def called(self, func: tirx.PrimFunc) -> tirx.PrimFunc | None:
        """A kernel that is a member as well, without what it does; ``None`` of all others."""
        name, member = self._by_body.get(func.body, ("", None))
        if member is None or not _is_also(func, member):
            return None
        return _calling(func, [name], [list(range(len(func.params)))])

    def _name_of(self, member: tirx.PrimFunc) -> str:
        known = self._by_body.get(member.body)
        if known is None or not _is_like(member, known[1]):
            known = self._alike(member)
            self._by_body[member.body] = (known[0], member)
        return known[0]

    def _alike(self, member: tirx.PrimFunc) -> tuple[str, tirx.PrimFunc]:
        """The first of the members that are structurally the same."""
        alike = self._by_hash.setdefault(tvm_ffi.structural_hash(member), [])
        for known in alike:
            if tvm_ffi.structural_equal(known[1], member):
                return known
        name = f"member_{len(self.functions)}"
        while name in self._names:
            name += "_"
        self._names.add(name)
        # Kernels that were made of one another may have variables in common.
        made = s_tir.renew_defs(member).with_attr(_OUTLINED, True)
        self.functions.append((ir.GlobalVar(name), made))
        alike.append((name, member))
        return alike[-1]


def _calling(func: tirx.PrimFunc, names: list[str], given: list[list[int]]) -> tirx.PrimFunc:
    """A kernel that is to do what members do."""
    empty = func.with_body(tirx.Evaluate(tirx.const(0, "int32"))).without_attr(GRID)
    return empty.with_attrs({_MEMBERS: names, _GIVEN: given})


def _is_like(one: tirx.PrimFunc, other: tirx.PrimFunc) -> bool:
    """Return whether members with the same body are the same."""
    return _has_parameters(one, other) and tvm_ffi.structural_equal(one.attrs, other.attrs)


def _is_also(func: tirx.PrimFunc, member: tirx.PrimFunc) -> bool:
    """Return whether a kernel with the body of a member is lowered like it."""
    said = {key: value for key, value in member.attrs.items() if key not in _COMPOSED}
    return (
        _has_parameters(func, member)
        and bool(func.attrs.get(GRID, False)) == bool(said.get(GRID, False))
        and all(tvm_ffi.structural_equal(func.attrs.get(key), said[key]) for key in said)
    )


def _has_parameters(one: tirx.PrimFunc, other: tirx.PrimFunc) -> bool:
    return len(one.params) == len(other.params) and all(
        a.same_as(b) for a, b in zip(one.params, other.params, strict=True)
    )


def _has(func: ir.BaseFunc, attribute: str) -> bool:
    return isinstance(func, tirx.PrimFunc) and func.attrs is not None and attribute in func.attrs


def with_members(
    mod: tvm.IRModule,
    merged: Callable[[tirx.PrimFunc, list[list[tirx.Stmt]]], tirx.PrimFunc],
    chosen: Callable[[tirx.PrimFunc], bool] = lambda _: True,
) -> tvm.IRModule:
    """A module whose composed kernels do again what their members do.

    Parameters
    ----------
    mod : IRModule
        Behind :class:`OutlineMembers`.
    merged : callable
        Makes a kernel, given it and the statements of each of its members. These name the kernel's
        parameters; none has variables in common with another one.
    chosen : callable
        Whether a kernel, and so its members, are dealt with; all others stay as they are.
    """
    if not any(_has(func, _MEMBERS) and chosen(func) for func in mod.functions.values()):
        return mod
    kept: dict[ir.GlobalVar, ir.BaseFunc] = {}
    composed: list[tuple[ir.GlobalVar, tirx.PrimFunc]] = []
    members: dict[str, tirx.PrimFunc] = {}
    for gvar, func in mod.functions_items():
        if _has(func, _OUTLINED) and chosen(func):
            members[str(gvar.name_hint)] = func
            continue
        kept[gvar] = func
        if _has(func, _MEMBERS) and chosen(func):
            composed.append((gvar, func))
    for gvar, func in composed:
        plain = func.without_attr(_MEMBERS).without_attr(_GIVEN)
        statements = _statements(func, members)
        if _has(plain, PARALLEL):
            kept[gvar] = merged(plain, statements)
        else:
            kept[gvar] = plain.with_body(sequence(statements[0]))
    return tvm.IRModule(kept, attrs=mod.attrs, global_infos=mod.global_infos)


def _statements(func: tirx.PrimFunc, members: Mapping[str, tirx.PrimFunc]) -> list[list[tirx.Stmt]]:
    """Return the body of each member of a kernel, on the kernel's parameters."""
    found: set[str] = set()
    names: dict[tirx.Var, list[tirx.Buffer]] = {}  # other than its own that a parameter has
    declared: list[tirx.Stmt] = []
    made: list[list[tirx.Stmt]] = []
    for name, places in zip(func.attrs[_MEMBERS], func.attrs[_GIVEN], strict=True):
        member = members[str(name)]
        if str(name) in found:
            member = s_tir.renew_defs(member)
        found.add(str(name))
        given = [func.params[int(place)] for place in places]
        own: dict[tirx.Var, tirx.Var] = dict(zip(member.params, given, strict=True))
        made.append([])
        for stmt in _flat(member.body):
            tensor = _declared_again(stmt, own)
            if tensor is not None:
                alike = names.setdefault(tensor, [])
                known = next((b for b in alike if _is_alike(b, stmt.buffer)), None)
                if known is None:  # a launch is given each tensor once, by the kernel's name for it
                    known = tirx.Var(tensor.name, stmt.buffer.ty)
                    alike.append(known)
                    declared.append(tirx.DeclBuffer(known, data=tensor.data))
                own[stmt.buffer] = known
                continue
            made[-1].append(_renamed(stmt, own))
    made[0] = [*declared, *made[0]]
    return made


def _declared_again(stmt: tirx.Stmt, own: Mapping[tirx.Var, tirx.Var]) -> tirx.Var | None:
    """The parameter that a statement gives another name, as one of another shape."""
    if not isinstance(stmt, tirx.DeclBuffer) or not isinstance(stmt.data, ir.Call):
        return None
    return next((own[arg] for arg in stmt.data.args if arg in own), None)


def _is_alike(one: tirx.Buffer, other: tirx.Buffer) -> bool:
    return tvm_ffi.structural_equal(one.ty, other.ty)


def _renamed(stmt: tirx.Stmt, names: Mapping[tirx.Var, tirx.Var]) -> tirx.Stmt:
    return tvm_ffi.structural_map(stmt, (tirx.Var, lambda var: names.get(var, var)))


def _flat(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    if isinstance(stmt, tirx.SeqStmt):
        return [part for one in stmt.seq for part in _flat(one)]
    if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key in _TRANSPARENT:
        return _flat(stmt.body)
    return [stmt]
