"""Several models side by side in one function, so that their kernels can be merged.

Everything that has a name gets the model's before it: ``detector/data``, ``detector/conv1``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import tvm
from tvm import relax

from tvm_edge.errors import InputError, TvmEdgeError, near_matches
from tvm_edge.frontend.normal_form import ImportedModel, SourceNode, Survey
from tvm_edge.frontend.result_names import name_results
from tvm_edge.relay_passes.ir.expressions import all_bindings, unused_name, with_functions_named
from tvm_edge.relay_passes.ir.locations import node_of
from tvm_edge.report import ModelPart, TensorSpec, UnsupportedInfo

__all__ = ["beside", "by_model", "check_models", "named_in_errors", "surveyed_beside"]

_SEPARATOR = "/"
"""Between the name of a model and that of its tensor or operator."""

T = TypeVar("T")
_Named = TypeVar("_Named", TensorSpec, SourceNode)


def check_models(models: Mapping[Any, Any]) -> None:
    """Refuse names that tensors cannot begin with.

    Raises
    ------
    InputError
    """
    if not models:
        raise InputError(
            "the dict of models is empty; pass {'name': model, …}",
            name="model",
            expected="at least one model",
            got="{}",
        )
    for name in models:
        if not isinstance(name, str) or not name or _SEPARATOR in name or not name.isprintable():
            raise InputError(
                f"a model is called {name!r}, and a name is text without {_SEPARATOR!r}: tensors "
                "are called 'name/tensor'; choose another, as {'detector': …}",
                name="model",
                expected=f"text without {_SEPARATOR!r}",
                got=repr(name),
            )


def by_model(option: str, models: Iterable[str], given: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """Sort what an option says of inputs of several models by model and by its own names.

    Raises
    ------
    InputError
        A name that does not begin with that of a model.
    """
    found: dict[str, dict[str, T]] = {model: {} for model in models}
    for name, value in given.items():
        model, separator, tensor = name.partition(_SEPARATOR)
        if not separator or model not in found:
            raise InputError(
                f"{option} names {name!r}, and inputs of several models are called "
                f"'model{_SEPARATOR}input'; {near_matches(model, found)}",
                name=name,
                expected=", ".join(f"{each}{_SEPARATOR}…" for each in found),
                got=name,
            )
        found[model][tensor] = value
    return found


@contextmanager
def named_in_errors(model: str) -> Iterator[None]:
    """Name the model in errors, one of several, and call its inputs as users do."""
    try:
        yield
    except TvmEdgeError as err:
        text = str(err)
        if isinstance(err, InputError) and err.name and repr(err.name) in text:
            full = f"{model}{_SEPARATOR}{err.name}"
            text = text.replace(repr(err.name), repr(full))
            text = text.replace(f"--input-shapes {err.name}:", f"--input-shapes {full}:")
            err.name = full
        else:
            text = f"the model {model!r}: {text}"
        err.args = (text, *err.args[1:])
        raise


def beside(models: Mapping[str, ImportedModel]) -> ImportedModel:
    """Put models side by side.

    Parameters
    ----------
    models : mapping of str to ImportedModel
        No two with a Relax variable in common.

    Returns
    -------
    ImportedModel
        Inputs, outputs and operators of one model after those of another.
    """
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    nodes: list[SourceNode] = []
    folded: list[SourceNode] = []
    parts: list[ModelPart] = []
    mains: list[relax.Function] = []
    functions: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
    for title, model in models.items():
        module = _renamed(model.module, {str(gvar.name_hint) for gvar in functions})
        module = _renumbered(module, len(nodes), len(inputs))
        mains.append(module["main"])
        functions |= {g: f for g, f in module.functions_items() if str(g.name_hint) != "main"}
        parts.append(
            ModelPart(
                title,
                tuple(range(len(inputs), len(inputs) + len(model.inputs))),
                tuple(range(len(outputs), len(outputs) + len(model.outputs))),
            )
        )
        inputs += [_with_own_dims(title, _named(title, spec)) for spec in model.inputs]
        outputs += [_named(title, spec) for spec in model.outputs]
        nodes += _numbered(title, model.nodes, len(nodes))
        folded += [_named(title, node) for node in model.folded]
    main, name = _one_after_the_other(mains), tvm.ir.GlobalVar("main")
    relax.expr._update_type(name, main.ty)
    functions[name] = main
    whole = tvm.IRModule(functions)
    return ImportedModel(
        " + ".join(models),
        whole,
        tuple(inputs),
        tuple(outputs),
        tuple(nodes),
        tuple(folded),
        tuple(f"{title}: {text}" for title, model in models.items() for text in model.warnings),
        tuple(parts),
    )


def surveyed_beside(models: Mapping[str, ImportedModel | Survey]) -> Survey:
    """Join the facts of several models, of which at least one cannot be imported."""
    nodes: list[SourceNode] = []
    folded: list[SourceNode] = []
    unsupported: list[UnsupportedInfo] = []
    warnings: list[str] = []
    for name, model in models.items():
        nodes += _numbered(name, model.nodes, len(nodes))
        folded += [_named(name, node) for node in model.folded]
        warnings += [f"{name}: {text}" for text in model.warnings]
        for missing in model.unsupported if isinstance(model, Survey) else ():
            operators = tuple(f"{name}{_SEPARATOR}{each}" for each in missing.operators)
            unsupported.append(replace(missing, operators=operators))
    return Survey(
        " + ".join(models), tuple(nodes), tuple(folded), tuple(unsupported), tuple(warnings)
    )


def _numbered(model: str, nodes: Iterable[SourceNode], first: int) -> list[SourceNode]:
    """Number a model's operators after `first` others."""
    moved = [replace(node, inputs=tuple(first + i for i in node.inputs)) for node in nodes]
    return [_named(model, node) for node in moved]


def _named(model: str, thing: _Named) -> _Named:
    return replace(thing, name=f"{model}{_SEPARATOR}{thing.name}")


def _with_own_dims(model: str, spec: TensorSpec) -> TensorSpec:
    """Call open dimensions by their model, too: another's of that name is another length."""
    if not spec.dims:
        return spec
    names = {dim.name: f"{model}{_SEPARATOR}{dim.name}" for dim in spec.dims}
    shape = tuple(names.get(d, d) if isinstance(d, str) else d for d in spec.shape)
    dims = tuple(replace(dim, name=names[dim.name]) for dim in spec.dims)
    return replace(spec, shape=shape, dims=dims)


def _renumbered(module: tvm.IRModule, nodes: int, inputs: int) -> tvm.IRModule:
    """Rename a module's variables by numbers after those of the models before it."""
    if not nodes and not inputs:
        return module
    results = {}
    for binding in all_bindings(module["main"].body):
        node = node_of(binding.var)
        if node is not None:
            results[binding.var] = node + nodes
    module = tvm.IRModule(dict(module.functions_items()), attrs=module.attrs)
    return name_results(module, results, inputs)


def _one_after_the_other(mains: Sequence[relax.Function]) -> relax.Function:
    """Make a function that takes all parameters and returns all results."""
    builder = relax.BlockBuilder()
    blocks: list[relax.BindingBlock] = []
    results: list[relax.Expr] = []
    for main in mains:
        own, fields = _results(main, builder)
        for block in own:
            both_dataflow = blocks and all(
                isinstance(each, relax.DataflowBlock) for each in (blocks[-1], block)
            )
            if both_dataflow:  # kernels are merged inside of a block
                block = relax.DataflowBlock([*blocks.pop().bindings, *block.bindings])
            blocks.append(block)
        results += fields
    returned = builder.normalize(relax.Tuple(results))
    body = relax.SeqExpr(blocks, returned)
    relax.expr._update_type(body, returned.ty)
    params = [param for main in mains for param in main.params]
    pure = all(bool(main.is_pure) for main in mains)
    made = relax.Function(params, body, None, pure)
    return made.with_attr("global_symbol", "main")


def _results(
    main: relax.Function, builder: relax.BlockBuilder
) -> tuple[list[relax.BindingBlock], list[relax.Expr]]:
    """Return the blocks of a function, and each of its results as a tuple can hold it."""
    blocks, returned = list(main.body.blocks), main.body.body
    if isinstance(returned, relax.Tuple):
        return blocks, list(returned.fields)
    if not isinstance(returned.ty, relax.TupleType):
        return blocks, [returned]
    values = {binding.var: binding.value for binding in all_bindings(main.body)}
    whole = values.get(returned)
    taken = []
    for index in range(len(returned.ty.fields)):
        item = builder.normalize(relax.TupleGetItem(returned, index))
        # Where the item turns out to be a node's result, this name is what is left of the two.
        field = whole.fields[index] if isinstance(whole, relax.Tuple) else None
        var = relax.Var(f"result{index}", item.ty)
        if isinstance(field, relax.Var) and node_of(field) is not None:
            var = relax.Var(str(field.name), item.ty, field.span)
        taken.append(relax.VarBinding(var, item))
    last = blocks[-1] if blocks else relax.BindingBlock([])
    blocks[-1:] = [type(last)([*last.bindings, *taken])]
    return blocks, [binding.var for binding in taken]


def _renamed(module: tvm.IRModule, taken: set[str]) -> tvm.IRModule:
    """Rename functions beside ``main`` whose names are in `taken`."""
    names: dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar] = {}
    own = {str(gvar.name_hint) for gvar in module.get_global_vars()}
    for gvar, func in module.functions_items():
        name = str(gvar.name_hint)
        if name == "main" or name not in taken:
            continue
        other = unused_name(name, taken | own)
        own.add(other)
        names[gvar] = tvm.ir.GlobalVar(other)
        relax.expr._update_type(names[gvar], func.ty)
    if not names:
        return module
    made = {}
    for gvar, func in module.functions_items():
        name = names.get(gvar, gvar)
        if isinstance(func, relax.Function):
            func = with_functions_named(func, names)
        if gvar in names and func.attrs is not None and "global_symbol" in func.attrs:
            func = func.with_attr("global_symbol", str(name.name_hint))
        made[name] = func
    return tvm.IRModule(made, attrs=module.attrs)
