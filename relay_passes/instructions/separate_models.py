"""Each of several models by itself, beside the function that runs all of them.

``main`` computes all models, and kernels of different ones may be merged there. Before that each
model is cut out of it: the same kernels on the same weights, by a function of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from tvm_edge.relay_passes.instructions.add_functions import add_functions
from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, all_bindings, is_call
from tvm_edge.relay_passes.memory.stream_weights import not_waiting, waits_for
from tvm_edge.report import ModelPart
from tvm_edge.runtime.entry import ALL, by_shape, function_of, kernel_by_kernel, part_sizes

__all__ = ["Alone", "models_alone", "with_models"]


@dataclass(frozen=True)
class Alone:
    """One of several models.

    Attributes
    ----------
    part : ModelPart
    module : tvm.IRModule
        ``main`` has the model's inputs and the weights of all models.
    weights : tuple of int
        The weights that it reads; of streamed ones also the parts that it reads ahead, which may be
        another model's.
    """

    part: ModelPart
    module: tvm.IRModule
    weights: tuple[int, ...]


def models_alone(lifted: tvm.IRModule, parts: Sequence[ModelPart]) -> list[Alone]:
    """Each of several models by itself; none where there is one only.

    Parameters
    ----------
    lifted : IRModule
        Operators in ``main`` are kernels; it takes the weights as its last parameter and returns a
        tuple.
    parts : sequence of ModelPart
    """
    return [_alone(lifted, part) for part in parts] if len(parts) > 1 else []


def _alone(lifted: tvm.IRModule, part: ModelPart) -> Alone:
    main = lifted["main"]
    weights = main.params[-1]
    inputs = [main.params[position] for position in part.inputs]
    blocks, results = _returning(main, part)
    blocks = _not_waiting_for_others(blocks, inputs)
    kept = _needed(blocks, inputs, results)
    read: dict[int, None] = {}
    for binding in (binding for block in blocks for binding in block.bindings):
        if binding.var in kept:
            for each in _with_branches(binding):
                read.update(dict.fromkeys(_items_of(weights, each.value)))
    for result in results:
        read.update(dict.fromkeys(_items_of(weights, result)))
    made = [
        type(block)(bound)
        for block in blocks
        if (bound := [binding for binding in block.bindings if binding.var in kept])
    ]
    builder = relax.BlockBuilder()
    returned = results[0] if len(results) == 1 else relax.Tuple(results)
    returned = builder.normalize(returned)
    body = relax.SeqExpr(made, returned)
    relax.expr._update_type(body, returned.ty)
    func = relax.Function([*inputs, weights], body, None, main.is_pure, main.attrs)
    functions = {g: f for g, f in lifted.functions_items() if not isinstance(f, relax.Function)}
    called = {
        str(binding.value.args[0].name_hint)
        for binding in all_bindings(func.body)
        if is_call(binding.value, *KERNEL_CALLS)
    }
    functions = {g: f for g, f in functions.items() if str(g.name_hint) in called}
    name = tvm.ir.GlobalVar("main")
    relax.expr._update_type(name, func.ty)
    functions[name] = func
    module = tvm.IRModule(functions, attrs=lifted.attrs, global_infos=lifted.global_infos)
    return Alone(part, module, tuple(sorted(read)))


def _returning(
    main: relax.Function, part: ModelPart
) -> tuple[list[relax.BindingBlock], list[relax.Expr]]:
    """The blocks of a function, and those of its results that are a model's."""
    blocks, returned = list(main.body.blocks), main.body.body
    if isinstance(returned, relax.Tuple):
        return blocks, [returned.fields[position] for position in part.outputs]
    # The tuple has a name. In its place each of the results gets one.
    for number, block in enumerate(blocks):
        for place, binding in enumerate(block.bindings):
            if binding.var.same_as(returned):
                fields = [binding.value.fields[position] for position in part.outputs]
                named = [
                    relax.VarBinding(relax.Var(f"result{i}", field.ty), field)
                    for i, field in enumerate(fields)
                ]
                before, after = block.bindings[:place], block.bindings[place + 1 :]
                blocks[number] = type(block)([*before, *named, *after])
                return blocks, [each.var for each in named]
    raise ValueError(f"main of several models returns {returned}, which is no tuple of theirs")


def _not_waiting_for_others(
    blocks: Sequence[relax.BindingBlock], inputs: Sequence[relax.Var]
) -> list[relax.BindingBlock]:
    """Blocks in which no part of streamed weights comes after a kernel of another model."""
    builder = relax.BlockBuilder()
    below: set[relax.Var] = set(inputs)  # what depends on the model's inputs
    made = []
    for block in blocks:
        bindings = []
        for binding in block.bindings:
            after = waits_for(binding.value)
            if after is not None and after not in below:
                value = builder.normalize(not_waiting(binding.value))
                binding = relax.VarBinding(binding.var, value)
            if below.intersection(relax.analysis.free_vars(binding.value)):
                below.add(binding.var)
            bindings.append(binding)
        made.append(type(block)(bindings))
    return made


def _needed(
    blocks: Sequence[relax.BindingBlock],
    inputs: Sequence[relax.Var],
    results: Sequence[relax.Expr],
) -> set[relax.Var]:
    """The variables of the bindings that lead to `results`.

    A cast that gives lengths their names stays with the model whose inputs it depends on: types of
    what follows may use them.
    """
    own = set(inputs)
    below: set[relax.Var] = set(inputs)  # what depends on the model's inputs
    for block in blocks:
        for binding in block.bindings:
            if below.intersection(relax.analysis.free_vars(binding.value)):
                below.add(binding.var)
    needed = {var for result in results for var in relax.analysis.free_vars(result)}
    kept: set[relax.Var] = set()
    for block in reversed(blocks):
        for binding in reversed(list(block.bindings)):
            names = isinstance(binding, relax.MatchCast) and binding.var in below
            if binding.var in needed or names:
                kept.add(binding.var)
                needed.update(relax.analysis.free_vars(binding.value))
    return kept - own


def _with_branches(binding: relax.Binding) -> list[relax.Binding]:
    """A binding after those of its branches."""
    value = binding.value
    branches = (value.true_branch, value.false_branch) if isinstance(value, relax.If) else ()
    return [*(each for branch in branches for each in all_bindings(branch)), binding]


def _items_of(weights: relax.Var, value: relax.Expr) -> list[int]:
    found: list[int] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.TupleGetItem) and expr.tuple_value.same_as(weights):
            found.append(int(expr.index))

    relax.analysis.post_order_visit(value, visit)
    return found


def with_models(whole: tvm.IRModule, lowered: Sequence[tvm.IRModule]) -> tvm.IRModule:
    """Add to the code of all models that of each by itself.

    Parameters
    ----------
    whole : IRModule
        Instructions.
    lowered : sequence of IRModule
        Those of each model, whose entry is called ``main`` as well.

    Returns
    -------
    IRModule
        Model ``i``'s entry is :func:`~tvm_edge.runtime.entry.function_of` ``(i)``. Equal kernels
        are there once.
    """
    made = whole.clone() if lowered else whole
    for number, module in enumerate(lowered):
        forms = (str, kernel_by_kernel, by_shape, part_sizes)
        add_functions(made, module, {form(ALL): form(function_of(number)) for form in forms})
    return made
