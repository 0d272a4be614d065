"""Models with an ``If`` run on two devices: copies are put into its branches."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_edge
from tests.compiler.steps import legalized, simplified
from tests.onnx_models import choosing, random_input, reference
from tests.relay_passes.two_devices import without_copies
from tvm_edge.compiler.placement import place
from tvm_edge.frontend import load_model
from tvm_edge.hardware import resolve_target
from tvm_edge.relay_passes.ir.expressions import all_bindings, is_call
from tvm_edge.relay_passes.place.label_operators import (
    CPU,
    GPU,
    Policy,
    label_operators,
)
from tvm_edge.relay_passes.place.verify_placement import VerifyPlacement

EDGES = np.float32([1.0, 1.5])


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    ("fallback", "on_cpu"),
    [
        ("list", {"If"}),  # for the sake of Unique
        (["Exp"], {"Exp", "If"}),
        (["If"], {"If"}),
        (["Neg"], {"If", "Neg"}),
        (["If", "Neg"], {"If", "Neg"}),
    ],
    ids=lambda value: "-".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_a_choice_beside_a_second_device(
    fallback: str | list[str], on_cpu: set[str], gpu: str
) -> None:
    model = choosing()
    compiled = tvm_edge.compile(model, gpu, fallback=fallback)
    placed = {p.op_type: p.device for p in compiled.report.placements}
    assert placed == {kind: "llvm" if kind in on_cpu else gpu for kind in ("Exp", "If", "Neg")}
    (reason,) = (p.reason for p in compiled.report.placements if p.op_type == "If")
    assert reason in ("named in fallback=", "the length of its result depends on data")
    assert compiled.report.copies
    for which in (True, False):
        inputs = {"data": random_input((4, 8), 3), "which": np.array(which)}
        (actual,), (expected,) = (compiled.run(inputs).values(), reference(model, inputs).values())
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


def module(searches_first: bool, form: str = "plain") -> tvm.IRModule:
    """Operators in the branches themselves, as Relax has it; one is a search, which the list
    leaves out. In the `form` "bare" a branch ends with it.
    """
    nested, pair = form == "nested", form == "pair"
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    which = relax.Var("which", relax.TensorType((), "bool"))
    with builder.function("main", [x, which]):
        grown = builder.emit(relax.op.exp(x))
        found = relax.op.bucketize(relax.op.nn.relu(grown), relax.const(EDGES))
        searched, bent = relax.op.astype(found, "float32"), relax.op.tanh(grown)
        if form == "bare":
            searched, bent = found, relax.op.astype(grown, "int64")
        if pair:
            searched, bent = relax.Tuple([searched, grown]), relax.Tuple([x, bent])
        if nested:
            searched = relax.If(which, searched, bent)
        ends = (searched, bent) if searches_first else (bent, searched)
        chosen = builder.emit(relax.If(which, *ends))
        if pair:
            chosen = builder.emit(relax.op.add(chosen[0], chosen[1]))
        builder.emit_func_output(builder.emit(relax.op.negative(chosen)))
    return relax.transform.Normalize()(builder.get())


def computed(x: np.ndarray, searches: bool, form: str) -> np.ndarray:
    grown = np.exp(x)
    searched = np.searchsorted(EDGES, grown).astype("float32")
    bent = np.trunc(grown) if form == "bare" else np.tanh(grown)
    if form == "pair":
        return -(searched + grown) if searches else -(x + bent)
    return -searched if searches else -bent


@pytest.mark.diagonals(5)
@pytest.mark.parametrize("form", ["plain", "bare", "nested", "pair"])
@pytest.mark.parametrize("searches_first", [True, False])
@pytest.mark.parametrize("fallback", ["list", ["exp"], ["If"], ["negative"]], ids=str)
def test_operators_in_branches(
    fallback: str | list[str], searches_first: bool, form: str, gpu: str
) -> None:
    compiled = tvm_edge.compile(module(searches_first, form), gpu, fallback=fallback)
    report = compiled.report
    on_cpu = {p.op_type for p in report.placements if p.device == "llvm"}
    assert on_cpu == ({"If"} if fallback == "list" else set(fallback))
    assert all(kernel.operators for kernel in report.kernels), "those in branches too"
    x = random_input((4, 8), 4)
    for which in (True, False):
        (actual,) = compiled.run({"x": x, "which": np.array(which)}).values()
        # The inner choice is the outer's once more.
        searches = which == searches_first and not (form == "nested" and not which)
        np.testing.assert_allclose(actual, computed(x, searches, form), rtol=1e-5)


def choice_of(main: relax.Function) -> relax.Binding:
    (choice,) = (b for b in all_bindings(main.body) if isinstance(b.value, relax.If))
    return choice


def test_where_branches_end() -> None:
    """On the CPU only if both do: then there is nothing to copy."""
    main = module(searches_first=True, form="bare")["main"]
    labels = label_operators(main, Policy("list"), {})
    assert len(labels) == len(list(all_bindings(main.body)))
    places = {
        str(b.value.op.name): labels[b.var].device
        for b in all_bindings(main.body)
        if isinstance(b.value, relax.Call)
    }
    assert {name for name, device in places.items() if device == CPU} == {"relax.bucketize"}
    assert labels[choice_of(main).var].device == GPU
    everything = Policy("named", lacking=frozenset(["float32", "int64"]))
    assert label_operators(main, everything, {})[choice_of(main).var].device == CPU


def placed(model: tvm.IRModule) -> tvm.IRModule:
    resolved = resolve_target("mali-t860", "llvm")
    imported = load_model(model, None)
    with resolved.cpu.target:
        return place(simplified(imported.module), imported, resolved, "list").module


def test_copies_are_made_where_they_are_needed() -> None:
    """In the branch that searches, there and back; a run that takes the other copies nothing."""
    main = placed(module(searches_first=True))["main"]
    choice = choice_of(main).value
    copies = [
        sum(is_call(b.value, "relax.to_vdevice") for b in all_bindings(body))
        for body in (choice.true_branch, choice.false_branch, main.body)
    ]
    assert copies == [2, 0, 2]


def test_a_tensor_crosses_once_however_many_branches_are_between() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    which = relax.Var("which", relax.TensorType((), "bool"))
    with builder.function("main", [x, which]):
        grown = builder.emit(relax.op.exp(x))
        before = builder.emit(relax.op.bucketize(grown, relax.const(EDGES)))
        chosen = builder.emit(relax.If(which, relax.op.tanh(grown), relax.op.sqrt(grown)))
        behind = builder.emit(relax.op.bucketize(grown, relax.const(EDGES + 1)))
        builder.emit_func_output(builder.emit(relax.Tuple([before, chosen, behind])))
    main = placed(relax.transform.Normalize()(builder.get()))["main"]
    assert sum(is_call(b.value, "relax.to_vdevice") for b in all_bindings(main.body)) == 1


def test_a_copy_lost_in_a_branch_is_found() -> None:
    resolved = resolve_target("mali-t860", "llvm")
    with resolved.target:
        legal = legalized(placed(module(searches_first=True)), resolved)
    VerifyPlacement()(legal)
    with pytest.raises(RuntimeError, match="lost a copy"):
        VerifyPlacement()(without_copies(legal))
