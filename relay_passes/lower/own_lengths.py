"""Kernels know lengths as variables of their own, read from the tensors that have them.

Behind four convolutions of stride 2 an image has ``(h - 1) // 16 + 1`` lines, and TVM gives each
kernel ``h`` beside its tensors. What a kernel asks of TVM's analyzer is whether an index is inside,
which for ``lines`` is known and for that expression is not: indices of registers were calculated in
the run, and a compilation took six times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import mul

import tvm
import tvm_ffi
from tvm import relax, s_tir, sym, tirx

from tvm_edge.relay_passes.lower.replaced_kernels import Replaced, with_kernels
from tvm_edge.schedules.accesses import constant, nodes_in
from tvm_edge.schedules.typical import typical

__all__ = ["own_lengths", "with_lengths"]


def own_lengths(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, int]]:
    """Replace lengths that are expressions of what kernels are given beside tensors.

    Kernels that were written with their loops are left as they are.

    Returns
    -------
    tvm.IRModule
    dict of str to int
        The typical length of each new variable, by its name.
    """
    names = _Names()
    kernels = {
        gvar: made
        for gvar, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and not _is_written(func)
        for made in [_with_own_lengths(func, names)]
        if made is not None
    }
    return (with_kernels(mod, _alike(kernels)) if kernels else mod), names.typical


@dataclass
class _Names:
    """Names of lengths: one name for one expression in all kernels."""

    typical: dict[str, int] = field(default_factory=dict)
    _of: dict[str, str] = field(default_factory=dict)

    def variable(self, length: tirx.Expr) -> tirx.Var:
        text = str(length)
        if text not in self._of:
            name = f"length_{len(self._of)}"
            self._of[text] = name
            self.typical[name] = typical(length)
        return tirx.Var(self._of[text], length.ty.dtype)


def _alike(kernels: Mapping[tvm.ir.GlobalVar, _Kernel]) -> dict[tvm.ir.GlobalVar, Replaced]:
    """Name kernels: those that differed only in the order of what they were given have one."""
    names: dict[tuple[object, ...], str] = {}
    found = {}
    for gvar, kernel in sorted(kernels.items(), key=lambda item: str(item[0].name_hint)):
        key = (tvm_ffi.StructuralKey(kernel.func), *map(str, _shapes(kernel.func)))
        name = names.setdefault(key, str(gvar.name_hint))
        found[gvar] = Replaced(name, kernel.func, kernel.given)
    return found


def _is_written(func: tirx.PrimFunc) -> bool:
    return func.attrs is not None and bool(func.attrs.get("tirx.is_scheduled", False))


@dataclass(frozen=True)
class _Kernel:
    """A kernel with lengths of its own.

    Attributes
    ----------
    func : PrimFunc
    scalars : sequence of Var
        Its parameters as it was, with their places, that are no tensors.
    inputs : sequence of int or Expr
        What it takes: the places of what it took, or an expression of `scalars`.
    """

    func: tirx.PrimFunc
    scalars: Mapping[tirx.Var, int]
    inputs: Sequence[int | tirx.Expr]

    def given(self, call: relax.Call) -> list[relax.Expr]:
        """Return what a call gives."""
        fields = call.args[1].fields
        values = {var: fields[place] for var, place in self.scalars.items()}

        def taken(source: int | tirx.Expr) -> relax.Expr:
            if isinstance(source, int):
                return fields[source]
            return tvm_ffi.structural_map(source, (tirx.Var, lambda var: values.get(var, var)))

        # Outputs are parameters of a kernel only.
        places = (s for s in self.inputs if not isinstance(s, int) or s < len(fields))
        return [taken(source) for source in places]


def _with_own_lengths(func: tirx.PrimFunc, names: _Names) -> _Kernel | None:
    scalars = {
        param: place
        for place, param in enumerate(func.params)
        if not isinstance(param.ty, tirx.BufferType)
    }
    known = _Lengths(scalars)
    known.name(_shapes(func), names)
    if not known:
        return None
    params, body = with_lengths(func.params, func.body, scalars, known.replaced)
    given = []
    for part in known.given:
        whole = _in_whole_lengths(params, body, part, names) if part.is_exact else None
        if whole is None:
            given.append((part.var, part.value))
        else:
            params, body = whole
    shapes = _shapes(tirx.PrimFunc(params, body))
    if _any_in([*shapes, *_extents(body)], scalars):
        return None  # in two forms, nobody would see that they are the same
    taken: list[tuple[tirx.Var, int | tirx.Expr]] = [
        (param, place)
        for place, param in enumerate(params)
        if param not in scalars or _any_in([body], [param])
    ]
    first = sum(place < min(scalars.values()) for _, place in taken if isinstance(place, int))
    taken[first:first] = given
    made = tirx.PrimFunc([param for param, _ in taken], body, attrs=func.attrs)
    return _Kernel(made, scalars, [source for _, source in taken])


def with_lengths(
    params: Sequence[tirx.Var],
    body: tirx.Stmt,
    lengths: Iterable[tirx.Var],
    change: Callable[[tirx.Expr | tirx.Stmt], tirx.Expr | tirx.Stmt],
) -> tuple[list[tirx.Var], tirx.Stmt]:
    """Return a kernel's parameters and body with other lengths, of its buffers too.

    Parameters
    ----------
    params, body
    lengths : iterable of Var
        Buffers whose shapes have one of these are declared anew.
    change : callable
        Returns an expression or a statement in terms of the new lengths.
    """
    old = set(lengths)
    buffers: dict[tirx.Var, tirx.Var] = {}

    def variable(var: tirx.Var) -> tirx.Var:
        if not isinstance(var.ty, tirx.BufferType):
            return var
        if var not in buffers:
            buffers[var] = declared_anew(var) if _any_in(var.shape, old) else var
        return buffers[var]

    def declared_anew(buffer: tirx.Var) -> tirx.Var:
        shape = [change(length) for length in buffer.shape]
        return tirx.decl_buffer(
            shape, buffer.dtype, str(buffer.name), scope=buffer.scope(), layout=buffer.layout
        )

    changed = change(tvm_ffi.structural_map(body, (tirx.Var, variable)))
    return [variable(param) for param in params], changed


def _shapes(func: tirx.PrimFunc) -> list[tirx.Expr]:
    buffers = (param for param in func.params if isinstance(param.ty, tirx.BufferType))
    return [length for buffer in buffers for length in buffer.shape]


def _extents(body: tirx.Stmt) -> list[tirx.Expr]:
    """Lengths of loops, of axes, and of what is allocated."""
    loops = [loop.extent for loop in nodes_in(body, tirx.For)]
    blocks = nodes_in(body, s_tir.SBlock)
    axes = [var.dom.extent for block in blocks for var in block.iter_vars]
    allocated = (buffer for block in blocks for buffer in block.alloc_buffers)
    return [*loops, *axes, *(length for buffer in allocated for length in buffer.shape)]


def _any_in(nodes: Iterable[tirx.Expr | tirx.Stmt], variables: Iterable[tirx.Var]) -> bool:
    wanted = set(variables)
    return any(var in wanted for node in nodes for var in nodes_in(node, tirx.Var))


@dataclass(frozen=True)
class _Part:
    """A variable that no length of a tensor is: `length` is so many of it, and may be some more."""

    var: tirx.Var
    value: tirx.Expr
    factor: int
    length: tirx.Expr
    is_exact: bool


def _in_whole_lengths(
    params: Sequence[tirx.Var], body: tirx.Stmt, part: _Part, names: _Names
) -> tuple[list[tirx.Var], tirx.Stmt] | None:
    """Return parameters and body in terms of a length alone, if they need no part of it.

    Most kernels read and write one size of image. To them it is a length like others, as the tensor
    has it, and they are alike where only the size is another.
    """
    whole = names.variable(part.length)
    change = _Wholes(part.var, part.factor, whole)
    taken, changed = with_lengths(params, body, [part.var], change.made)
    lengths = _shapes(tirx.PrimFunc(taken, changed))
    is_read = any(length.same_as(whole) for length in lengths)
    return (taken, changed) if is_read and not _any_in([changed, *lengths], [part.var]) else None


@dataclass(frozen=True)
class _Wholes:
    """Replaces `factor` times a variable by another variable, and rounded parts of it."""

    part: tirx.Var
    factor: int
    whole: tirx.Var

    def made(self, node: tirx.Expr | tirx.Stmt) -> tirx.Expr | tirx.Stmt:
        kinds = ((tirx.Mul, self._product), (tirx.FloorDiv, self._quotient))
        return tvm_ffi.structural_map(node, kinds, order="pre")

    def _product(self, product: tirx.Mul) -> tirx.Expr:
        factor, others = 1, []
        for operand in _operands(product):
            value = constant(operand)
            factor *= 1 if value is None else value
            others += [operand] if value is None else []
        place = next((i for i, other in enumerate(others) if other.same_as(self.part)), None)
        if place is None or factor % self.factor:
            return product
        others[place] = self.whole
        made = reduce(mul, map(self.made, others))
        return made * (factor // self.factor) if factor != self.factor else made

    def _quotient(self, quotient: tirx.FloorDiv) -> tirx.Expr:
        """Return ``(x + 1) // 2`` as ``(2 * x + 3) // 4``, which a tensor of 2 * x is known by."""
        size = constant(quotient.b)
        terms = _terms(quotient.a)
        offset = sum(int(term) * factor for term, factor in terms if constant(term) is not None)
        others = [(term, factor) for term, factor in terms if constant(term) is None]
        if size is None or len(others) != 1 or others[0][1] != 1:
            return quotient
        if not others[0][0].same_as(self.part):
            return quotient
        # No multiple of the factor is between the two.
        above, below = self.factor * offset + self.factor - 1, self.factor * size
        return tirx.floordiv(self.whole + above % below, below) + above // below


def _operands(product: tirx.Expr) -> list[tirx.Expr]:
    if isinstance(product, tirx.Mul):
        return [*_operands(product.a), *_operands(product.b)]
    return [product]


class _Lengths:
    """Expressions that the variables of a kernel replace.

    Parameters
    ----------
    scalars : sequence of Var
        Parameters of the kernel that are no tensors.
    """

    def __init__(self, scalars: Iterable[tirx.Var]) -> None:
        self._scalars = set(scalars)
        self._replaced: list[tuple[tirx.Expr, tirx.Expr]] = []
        self._variables: list[tirx.Var] = []
        self._simplify: Callable[[tirx.Expr], tirx.Expr] = sym.Analyzer().simplify

        self.given: list[_Part] = []

    def __bool__(self) -> bool:
        return bool(self._variables)

    def name(self, lengths: Sequence[tirx.Expr], names: _Names) -> None:
        """Give lengths that depend on a scalar variables.

        Where a length is ``lines``, twice its (h - 1) // 16 is 2 * (lines - 1). One that was
        enlarged is 8 * x, or nobody would see that it divides; a tensor seldom tells x, so that the
        kernel is given it.
        """
        enlarged = []
        for length in lengths:
            terms = self._open_terms(length)
            if len(terms) == 1 and terms[0][1] > 1:
                enlarged.append((length, *terms[0]))
            elif terms:
                self._replaced.append((length, self._variable(length, names)))
                if len(terms) == 1 and terms[0][1] == 1:
                    self._replace_term(length, terms[0][0], self._replaced[-1][1])
        for length, term, factor in enlarged:
            if not self._open_terms(length):
                continue  # by a shorter length of another tensor
            offset = self._simplify(length - term * factor)
            base = self._simplify(term + tirx.floordiv(offset, factor))
            var = self._variable(base, names)
            self.given.append(_Part(var, base, factor, length, offset % factor == 0))
            self._replaced.append((length, self._simplify(var * factor + offset % factor)))
            self._replace_term(base, term, var)

    def _open_terms(self, length: tirx.Expr) -> list[tuple[tirx.Expr, int]]:
        """Terms of a length that depends on a scalar still, without what is added to them."""
        if not _any_in([self.replaced(length)], self._scalars):
            return []
        return [term for term in _terms(self._simplify(length)) if constant(term[0]) is None]

    def _variable(self, length: tirx.Expr, names: _Names) -> tirx.Var:
        self._variables.append(names.variable(length))
        return self._variables[-1]

    def _replace_term(self, length: tirx.Expr, term: tirx.Expr, var: tirx.Var) -> None:
        """Know the only term of a length that is `var`."""
        self._replaced.append((term, var - self._simplify(length - term)))

    def replaced(self, node: tirx.Expr | tirx.Stmt) -> tirx.Expr | tirx.Stmt:
        """Return a statement or an expression in terms of the variables."""

        def known(expr: tirx.Expr) -> tirx.Expr:
            equal = (b for a, b in self._replaced if tvm_ffi.structural_equal(expr, a))
            found = next(equal, None)
            return self._coarser(expr) if found is None else found

        def simplified(expr: tirx.Expr) -> tirx.Expr:
            if not _any_in([expr], self._variables):
                return expr
            return self._simplify(self._in_one_form(expr))

        if not self._replaced:
            return node
        kinds = tuple({tirx.FloorDiv, *(type(expr) for expr, _ in self._replaced)})
        done = tvm_ffi.structural_map(node, (kinds, known), order="pre")
        return tvm_ffi.structural_map(
            done, ((tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv), simplified)
        )

    def _coarser(self, expr: tirx.Expr) -> tirx.Expr:
        """Return ``(h + 3) // 16`` in terms of ``(h - 1) // 4``: a fourth of that and one."""
        if not isinstance(expr, tirx.FloorDiv) or constant(expr.b) is None:
            return expr
        for finer, own in self._replaced:
            if not isinstance(finer, tirx.FloorDiv) or constant(finer.b) is None:
                continue
            size = int(finer.b)
            beyond = constant(self._simplify(expr.a - finer.a))
            if beyond is not None and beyond % size == 0 and int(expr.b) % size == 0:
                return tirx.floordiv(own + beyond // size, int(expr.b) // size)
        return expr

    def _in_one_form(self, expr: tirx.Expr) -> tirx.Expr:
        """Return ``(lines - 1) // 4`` as ``(lines + 3) // 4 - 1``: TVM leaves both as they are."""
        if not isinstance(expr, tirx.FloorDiv) or constant(expr.b) is None:
            return expr
        terms = _terms(self._simplify(expr.a))
        offset = sum(int(term) * factor for term, factor in terms if constant(term) is not None)
        whole = offset // int(expr.b)
        rest = self._simplify(expr.a - whole * int(expr.b))
        return tirx.floordiv(rest, expr.b) + whole if whole else expr


def _terms(expr: tirx.Expr, factor: int = 1) -> list[tuple[tirx.Expr, int]]:
    """Return the terms of a sum, with their factors."""
    if isinstance(expr, tirx.Add):
        return [*_terms(expr.a, factor), *_terms(expr.b, factor)]
    if isinstance(expr, tirx.Sub):
        return [*_terms(expr.a, factor), *_terms(expr.b, -factor)]
    by = constant(expr.b) if isinstance(expr, tirx.Mul) else None
    return [(expr, factor)] if by is None else _terms(expr.a, factor * by)
