"""Count what the structure of the product is judged by, without running any of it.

::

    python tools/static_counts.py                       # every count of this checkout
    python tools/static_counts.py device-kinds          # one of them
    python tools/static_counts.py --root ../other --json

A count is a function from the product's modules to places; `COUNTS` lists them with their rules
(``--rules`` prints these). The product is ``tvm_edge/``, ``schedules/`` and ``relay_passes/``;
tests, benchmarks, tools and examples do not count.

The figures of commit de5c59a, to compare with: device-kinds 124, long-functions 1,
compiler-modules 30, parallel-lists 15, loose-passes 73, circular-imports 6, statements 33985.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PRODUCT = ("tvm_edge", "schedules", "relay_passes")
_LONG = 60  # lines of a function


@dataclass(frozen=True)
class Module:
    """A file of the product, parsed.

    Attributes
    ----------
    path : str
        Relative to the root, with slashes.
    name : str
        As it is imported: ``tvm_edge.schedules.grid`` for ``schedules/grid.py``.
    tree : ast.Module
    """

    path: str
    name: str
    tree: ast.Module


@dataclass(frozen=True)
class Place:
    """One thing counted.

    Attributes
    ----------
    path : str
        A file, or several joined by arrows.
    line : int
        0 where the whole file counts.
    what : str
    amount : int
        How much it adds to the count.
    """

    path: str
    line: int
    what: str
    amount: int = 1


Modules = Mapping[str, Module]
Count = Callable[[Modules], Iterator[Place]]

_KINDS = frozenset(("llvm", "cpu", "gpu", "opencl", "cuda"))
_SEARCHES = frozenset(("startswith", "endswith", "index", "count", "removeprefix"))


def device_kinds(modules: Modules) -> Iterator[Place]:
    """Tests for a device's kind.

    The kinds are the strings "llvm", "cpu", "gpu", "opencl", "cuda". One each counts: a comparison
    (also ``in``) that has one of them on a side, in a tuple, list or set there, or by the name of a
    constant of the module, or imported, that is one of them or a collection or dict of them; a
    comparison with a member of DLPack's ``DLDeviceType``; a key of a dict; a case of a ``match``;
    a subscript or ``.get`` by one of them; a call of ``is_…`` or of a search in a string
    (``startswith``, …) with one of them as an argument. Arguments, results, annotations and values
    in a dict do not count.
    """
    constants = {name: set(_kind_constants(module.tree)) for name, module in modules.items()}
    for module in modules.values():
        known = constants[module.name] | {
            alias.asname or alias.name
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.name in constants.get(node.module or "", ())
        }
        for node in ast.walk(module.tree):
            for line, what in _kind_tests(node, known):
                yield Place(module.path, line, what)


def _is_kind(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in _KINDS


def _kind_constants(tree: ast.Module) -> Iterator[str]:
    """Names of module-level constants that are a kind, or kinds and nothing else."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        if isinstance(value, ast.Call) and len(value.args) == 1:  # frozenset((…))
            value = value.args[0]
        elements = _elements(value)
        if elements and all(_is_kind(element) for element in elements):
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _elements(value: ast.AST) -> list[ast.AST]:
    if isinstance(value, ast.Tuple | ast.List | ast.Set):
        return list(value.elts)
    if isinstance(value, ast.Dict):
        return [key for key in value.keys if key is not None]
    return [value]


def _kind_tests(node: ast.AST, constants: set[str]) -> Iterator[tuple[int, str]]:
    """Line and source of each test that a node is by itself."""

    def names_kind(side: ast.AST) -> bool:
        if isinstance(side, ast.Starred):
            side = side.value
        if isinstance(side, ast.Tuple | ast.List | ast.Set):
            return any(map(names_kind, side.elts))
        if isinstance(side, ast.Attribute):
            return side.attr.startswith("kDL")
        return _is_kind(side) or (isinstance(side, ast.Name) and side.id in constants)

    if isinstance(node, ast.Compare):
        if any(map(names_kind, (node.left, *node.comparators))):
            yield node.lineno, ast.unparse(node)
    elif isinstance(node, ast.Dict):
        for key in node.keys:
            if key is not None and names_kind(key):
                yield key.lineno, f"{{{ast.unparse(key)}: …}}"
    elif isinstance(node, ast.match_case):
        if any(_is_kind(part) for part in ast.walk(node.pattern)):
            yield node.pattern.lineno, f"case {ast.unparse(node.pattern)}"
    elif isinstance(node, ast.Subscript):
        if names_kind(node.slice) and not isinstance(node.slice, ast.Tuple):
            if ast.unparse(node.value) != "Literal":
                yield node.lineno, ast.unparse(node)
    elif isinstance(node, ast.Call) and any(map(names_kind, node.args)):
        name = ast.unparse(node.func).rpartition(".")[2]
        is_method = isinstance(node.func, ast.Attribute)
        if name.lstrip("_").startswith("is_") or (is_method and name in {"get", *_SEARCHES}):
            yield node.lineno, ast.unparse(node)


def long_functions(modules: Modules) -> Iterator[Place]:
    """Functions of ``tvm_edge/compiler/`` over 60 lines.

    From the line of ``def`` to the last line of the body, decorators and the docstring left out; a
    nested function counts by itself and as a part of the outer one.
    """
    for module in modules.values():
        if not module.path.startswith("tvm_edge/compiler/"):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                first = node.body[0]
                if ast.get_docstring(node) is not None:
                    lines -= (first.end_lineno or first.lineno) - first.lineno + 1
                if lines > _LONG:
                    yield Place(module.path, node.lineno, f"{node.name}: {lines} lines")


def compiler_modules(modules: Modules) -> Iterator[Place]:
    """Modules of ``tvm_edge/compiler/``, ``__init__.py`` too."""
    for module in modules.values():
        if module.path.startswith("tvm_edge/compiler/"):
            yield Place(module.path, 0, module.name)


def parallel_lists(modules: Modules) -> Iterator[Place]:
    """Lists of ``tvm_edge/compiler/`` that are held together by position.

    A list that another one's positions pick from (``[a[i] for i in b]``), and names or attributes
    that are walked in step (``zip`` of two and more of them).
    """
    for module in modules.values():
        if not module.path.startswith("tvm_edge/compiler/"):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
                if sum(isinstance(arg, ast.Name | ast.Attribute) for arg in node.args) > 1:
                    yield Place(module.path, node.lineno, ast.unparse(node))
            elif isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Subscript):
                index, picked = node.elt.slice, node.generators[0]
                names = isinstance(index, ast.Name) and isinstance(picked.iter, ast.Name)
                if names and not picked.ifs and ast.unparse(picked.target) == ast.unparse(index):
                    yield Place(module.path, node.lineno, ast.unparse(node))


def loose_passes(modules: Modules) -> Iterator[Place]:
    """Modules of ``relay_passes/`` that are in no phase's folder."""
    for module in modules.values():
        folder, _, name = module.path.rpartition("/")
        if folder == "relay_passes" and name != "__init__.py":
            yield Place(module.path, 0, module.name)


def circular_imports(modules: Modules) -> Iterator[Place]:
    """Sets of modules that import each other, also by way of others.

    Any import counts: of a module, or of a name from it, at the top of a file, in a function or for
    type checkers. A package's ``__init__.py`` is left out: whoever imports one of its modules runs
    it.
    """
    graph = {
        name: {used for used in _imported(module, modules) if used != name}
        for name, module in modules.items()
        if not _is_package(module)
    }
    for circle in _circles(graph):
        yield Place(" <-> ".join(modules[name].path for name in circle), 0, "import each other")


def _is_package(module: Module) -> bool:
    return module.path.endswith("/__init__.py")


def _imported(module: Module, modules: Modules) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                member = f"{node.module}.{alias.name}"
                yield member if member in modules else node.module


def _circles(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Sets of more than one module that reach each other, sorted."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        ahead = [start]
        while ahead:
            for name in graph.get(ahead.pop(), ()):
                if name not in found and name in graph:
                    found.add(name)
                    ahead.append(name)
        return found

    reach = {name: reached(name) for name in graph}
    seen: set[str] = set()
    for name in sorted(graph):
        if name in reach[name] and name not in seen:
            circle = sorted(other for other in reach[name] if name in reach[other])
            seen.update(circle)
            yield circle


def statements(modules: Modules) -> Iterator[Place]:
    """Statements of the product, docstrings left out."""
    for module in modules.values():
        amount = sum(
            isinstance(node, ast.stmt)
            and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            for node in ast.walk(module.tree)
        )
        yield Place(module.path, 0, "statements", amount)


COUNTS: Mapping[str, Count] = {
    "device-kinds": device_kinds,
    "long-functions": long_functions,
    "compiler-modules": compiler_modules,
    "parallel-lists": parallel_lists,
    "loose-passes": loose_passes,
    "circular-imports": circular_imports,
    "statements": statements,
}
"""By the name to type; a new one is a function here."""


def read_modules(root: Path) -> dict[str, Module]:
    """Parse the product's files below a root, by the name that they are imported by."""
    found = {}
    for top in _PRODUCT:
        for path in sorted((root / top).rglob("*.py")):
            inside = path.relative_to(root)
            if any((root / parent).is_symlink() for parent in inside.parents):
                continue  # tvm_edge/schedules is schedules/
            parts = inside.with_suffix("").parts
            name = ".".join(parts if top == "tvm_edge" else ("tvm_edge", *parts))
            name = name.removesuffix(".__init__")
            found[name] = Module(inside.as_posix(), name, ast.parse(path.read_text()))
    return found


def by_file(places: list[Place]) -> dict[str, int]:
    """Amount that each file adds, the most first."""
    amounts: dict[str, int] = {}
    for place in places:
        amounts[place.path] = amounts.get(place.path, 0) + place.amount
    return dict(sorted(amounts.items(), key=lambda item: (-item[1], item[0])))


def main() -> None:
    """Print the counts that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COUNTS))
    parser.add_argument("--root", type=Path, default=_ROOT, help="checkout to count")
    parser.add_argument("--places", action="store_true", help="print every place")
    parser.add_argument("--rules", action="store_true", help="print what each count counts")
    parser.add_argument("--json", action="store_true", help="print totals and files as JSON")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in COUNTS]
    if unknown:
        parser.error(f"no count is named {unknown[0]!r}; there are {', '.join(COUNTS)}")
    modules = read_modules(options.root)
    found = {name: list(COUNTS[name](modules)) for name in options.names or COUNTS}
    if options.json:
        totals = {
            name: {"total": sum(p.amount for p in places), "files": by_file(places)}
            for name, places in found.items()
        }
        json.dump(totals, sys.stdout, indent=2)
        print()
        return
    for name, places in found.items():
        print(f"{name}: {sum(place.amount for place in places)}")
        if options.rules:
            print(textwrap.indent(inspect.getdoc(COUNTS[name]) or "", "  "))
        if options.places:
            for place in places:
                print(f"  {place.path}:{place.line}: {place.what}")
        elif name in options.names:
            for path, amount in by_file(places).items():
                print(f"  {amount:4} {path}")


if __name__ == "__main__":
    main()
