"""The list of operators that perform on a GPU knows all, and moves no network of the zoo."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_edge
from tests.compiler.reduced_networks import REDUCED
from tests.compiler.steps import simplified
from tests.marks import in_full
from tvm_edge import zoo
from tvm_edge.frontend import load_model
from tvm_edge.hardware import resolve_target
from tvm_edge.ops.registry import OPERATORS, Fitness, find
from tvm_edge.relay_passes.place.label_operators import CPU, GPU, Policy, label_operators

KINDS = ("opencl", "cuda")

# Between them they have the most operators: resizing, suppression twice, regions, scatters.
QUICK = ("deeplab_v3", "faster_rcnn_head")

# Several machines, checkpoints of gradients, and what compiled code is made of.
_NO_OPERATORS = ("builtin", "call_", "ccl", "dist", "inspect", "invoke_", "memory", "vm")
_MARKS = {"relax.grad.end_checkpoint", "relax.grad.no_grad", "relax.grad.start_checkpoint"}


def operators() -> list[str]:
    """Operators of models: those that TVM makes kernels of, and ours."""
    found = []
    for name in tvm.ir.Op.list_op_names():
        of_tvm = tvm.ir.Op.get(name).get_attr("FLegalize") is not None
        has_kernels = of_tvm or find(name).lower is not None
        inside = name.startswith(tuple(f"relax.{prefix}" for prefix in _NO_OPERATORS))
        if name.startswith(("relax.", "tvm_edge.")) and has_kernels and not inside:
            found.append(name)
    return sorted(set(found) - _MARKS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_operator_is_listed_or_left_out_with_a_note(kind: str) -> None:
    assert len(operators()) > 150
    for name in operators():
        fitness = find(name).gpu
        assert kind in fitness.performs or fitness.left_out or fitness.impossible, name


@pytest.mark.parametrize("kind", KINDS)
def test_the_list_contradicts_nothing(kind: str) -> None:
    registered = set(tvm.ir.Op.list_op_names())
    for name, operator in OPERATORS.items():
        fitness = operator.gpu
        performs = kind in fitness.performs
        assert performs + bool(fitness.left_out) + bool(fitness.impossible) <= 1, name
        assert performs or not fitness.static, name
        of_relax = name.startswith(("relax.", "tvm_edge."))
        assert name in registered or not of_relax, f"a slip of the pen: {name}"
        assert of_relax or not performs, f"of ONNX: {name}"


def exponential() -> relax.Function:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    return builder.get()["main"]


def test_what_the_list_does_not_know_goes_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By kind of device, with a reason; of a name that is none of ours nothing is known."""
    only = replace(find("relax.exp"), gpu=Fitness(performs=frozenset({"cuda"})))
    monkeypatch.setitem(OPERATORS, "relax.exp", only)
    (label,) = label_operators(exponential(), Policy("list"), {}).values()
    assert label.device == CPU
    assert "known to perform on opencl" in label.reason
    (label,) = label_operators(exponential(), Policy("list", kind="cuda"), {}).values()
    assert label.device == GPU
    (label,) = label_operators(exponential(), Policy("named"), {}).values()
    assert label.device == GPU, "only fallback='list' goes by it"


@pytest.mark.parametrize("name", [*QUICK, *in_full(*(n for n in REDUCED if n not in QUICK))])
def test_networks_stay(name: str) -> None:
    """All that a GPU can run of the zoo performs there: the list moves none of it."""
    model = load_model(zoo.build(name, **REDUCED[name]), None)
    with resolve_target("llvm").target:
        main = simplified(model.module)["main"]
    needed = label_operators(main, Policy("named"), {})
    for kind in KINDS:
        assert label_operators(main, Policy("list", kind=kind), {}) == needed
    if name != "faster_rcnn_head":  # scatters as many ranks as boxes were found
        assert {label.device for label in needed.values()} == {GPU}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        # The reduced SSD's is in tests/compiler/test_gpu_models.py.
        ("squeezenet1_0", "jetson-orin-nano"),
        *in_full(
            ("squeezenet1_0", "mali-t860"),
            ("ssd_mobilenet_v1", "jetson-orin-nano"),
            ("ssd_mobilenet_v1", "mali-t860"),
        ),
    ],
)
def test_reports_say_that_networks_stay(name: str, target: str) -> None:
    model = zoo.build(name, **REDUCED[name])
    report = tvm_edge.analyze(model, target, fallback="list")
    devices = {p.device for p in report.placements if p.device}
    assert devices == {report.target.split()[0]}
    assert (len(report.partitions), report.copies) == (1, ())
    assert {p.reason for p in report.placements if p.device} == {"the target is this device"}


def test_a_median_leaves_the_gpu(gpu: str) -> None:
    """TVM's kernel of it calls a sort of the CPU's."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 7), "float32"))
    with builder.function("main", [x]):
        middle = builder.emit(relax.op.median(builder.emit(relax.op.exp(x)), axis=1))
        values = builder.emit(relax.TupleGetItem(middle, 0))
        builder.emit_func_output(builder.emit(relax.op.negative(values)))
    compiled = tvm_edge.compile(builder.get(), gpu)
    placed = {p.op_type: p.device for p in compiled.report.placements}
    assert placed["median"] == "llvm"
    data = np.random.default_rng(0).standard_normal((4, 7)).astype("float32")
    (actual,) = compiled.run({"x": data}).values()
    np.testing.assert_allclose(actual, -np.median(np.exp(data), axis=1), rtol=1e-5)
