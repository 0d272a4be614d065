"""Operators of the user's model in the report."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import relax

import tvm_edge
from tests.onnx_models import make_model, random_input, session
from tests.zoo.counts import count
from tvm_edge import CompileReport, zoo
from tvm_edge.report import KernelInfo, MemoryInfo, OperatorInfo


@pytest.fixture(scope="module")
def report(detector: onnx.ModelProto) -> CompileReport:
    return tvm_edge.analyze(detector, "mali-t860", fallback=["NonMaxSuppression"])


def test_every_operator_says_where_it_runs(report: CompileReport) -> None:
    told = [(o.name, o.op_type, o.device, o.reason) for o in report.operators]
    assert told == [(p.operator, p.op_type, p.device, p.reason) for p in report.placements]
    assert {o.device for o in report.operators} >= {"opencl", "llvm"}


def test_flops_and_parameters_are_those_of_an_independent_count(
    detector: onnx.ModelProto, report: CompileReport
) -> None:
    counts = count(detector)
    learned = [o for o in report.operators if o.op_type in ("Conv", "Gemm")]
    assert sum(o.flops or 0 for o in learned) == 2 * counts.multiply_adds
    assert sum(o.parameters for o in learned) == counts.weights
    normalised = [o for o in report.operators if o.op_type == "BatchNormalization"]
    assert sum(o.parameters for o in normalised) == 4 * counts.normalised_channels


def test_bytes_are_those_of_the_arrays(detector: onnx.ModelProto, report: CompileReport) -> None:
    """ONNX Runtime computes every tensor of the graph; NumPy says how large it is."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(detector)
    declared = {output.name for output in exposed.graph.output}
    names = [name for node in exposed.graph.node for name in node.output if name]
    exposed.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in names if name not in declared
    )
    opened = session(exposed)
    (image,) = opened.get_inputs()
    feed = {image.name: random_input(image.shape)}
    sizes = {n: v.nbytes for n, v in zip(names, opened.run(names, feed), strict=True)}
    sizes[image.name] = feed[image.name].nbytes

    nodes = {node.name: node for node in detector.graph.node}
    constant = {t.name: onnx.numpy_helper.to_array(t).nbytes for t in detector.graph.initializer}
    for operator in report.operators:
        if operator.constant:
            constant |= {name: sizes[name] for name in nodes[operator.name].output}
    checked = 0
    for operator in (o for o in report.operators if not o.constant):
        read = set(filter(None, nodes[operator.name].input))
        assert operator.weight_bytes == sum(constant[name] for name in read & set(constant))
        if operator.input_bytes is not None:
            assert operator.input_bytes == sum(sizes[name] for name in read - set(constant))
        if operator.output_bytes is not None:
            assert operator.output_bytes == sum(sizes[n] for n in nodes[operator.name].output)
            checked += 1
    assert checked > 0.8 * len(detector.graph.node)


def test_kernels_do_the_work_of_their_operators(report: CompileReport) -> None:
    """No loop that guards padding counts, and an operator in two kernels does not count twice."""
    known = {o.name: o.flops for o in report.operators}
    for kernel in report.kernels:
        in_one = [o for o in kernel.operators if sum(o in k.operators for k in report.kernels) == 1]
        if len(in_one) == len(kernel.operators) and all(known[o] is not None for o in in_one):
            assert kernel.flops == sum(known[o] or 0 for o in in_one)
    counted = {o for o, flops in known.items() if flops is not None}
    whole = [k for k in report.kernels if set(k.operators) <= counted]
    assert sum(k.flops for k in whole) == pytest.approx(report.flops, rel=0.01)


def test_an_operator_in_several_kernels_is_shared_out() -> None:
    """A normalisation is two kernels: its seven operations per element, once."""
    model = make_model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
            helper.make_node("InstanceNormalization", ["c", "s", "b"], ["y"], name="norm"),
        ],
        {"x": (1, 4, 9, 9)},
        ["y"],
        {
            "w": np.ones((6, 4, 1, 1), "float32"),
            "s": np.ones(6, "float32"),
            "b": np.ones(6, "float32"),
        },
    )
    report = tvm_edge.analyze(model, "mali-t860")
    assert sum("norm" in kernel.operators for kernel in report.kernels) > 1
    assert sum(k.flops for k in report.kernels) == pytest.approx(2 * 6 * 4 * 81 + 7 * 6 * 81)


def test_types_add_up(report: CompileReport) -> None:
    rows = report.operator_types()
    running = [o for o in report.operators if not o.constant]
    assert {row.op_type: row.count for row in rows} == Counter(o.op_type for o in running)
    assert sum(row.flops for row in rows) == report.flops
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert sum(row.weight_bytes for row in rows) == sum(o.weight_bytes for o in running)
    assert rows[0].op_type == "Conv"


def test_constant_operators_are_listed_and_take_nothing() -> None:
    model = make_model(
        [
            helper.make_node("Exp", ["w"], ["e"], name="exp"),
            helper.make_node("Mul", ["x", "e"], ["y"], name="mul"),
        ],
        {"x": (3, 4)},
        ["y"],
        {"w": np.ones((3, 4), "float32")},
    )
    report = tvm_edge.analyze(model, "llvm")
    mul, exp = report.operators
    assert (mul.name, mul.flops, mul.parameters, mul.constant) == ("mul", 12, 12, False)
    assert (exp.name, exp.flops, exp.weight_bytes, exp.constant) == ("exp", 0, 0, True)
    assert exp.reason.startswith("constant")
    assert report.flops_distribution().count == 1


@pytest.mark.parametrize("of", ["operators", "kernels"])
def test_the_distribution_sums_to_the_total(report: CompileReport, of: str) -> None:
    spread = report.flops_distribution(of)
    work = {
        "operators": [o.flops or 0 for o in report.operators if not o.constant],
        "kernels": [k.flops for k in report.kernels],
    }[of]
    assert spread.count == len(work) == sum(b.count for b in spread.bins)
    assert spread.flops == pytest.approx(sum(work))
    assert sum(b.flops for b in spread.bins) == pytest.approx(sum(work))
    assert spread.under_5_mflop == np.mean(np.array(work) < 5e6)
    assert spread.at_most_1_percent == np.mean(np.array(work) <= sum(work) / 100)
    for b in spread.bins:
        assert b.count == sum(b.low <= w < (b.high or np.inf) for w in work)
    edges = [b.low for b in spread.bins]
    assert edges == sorted(edges) and edges[0] == 0 and spread.bins[-1].high is None
    assert [b.high for b in spread.bins[:-1]] == edges[1:]


def test_a_distribution_of_something_else(report: CompileReport) -> None:
    with pytest.raises(ValueError, match="'operators' or 'kernels'"):
        report.flops_distribution("layers")


# The networks of EMDL'21 that the zoo has, in the paper's Figure 2.
FIGURE_2 = ["inception_v3", "mobilenet_v1", "mobilenet_v2", "resnet50_v2", "squeezenet1_0"]


@pytest.mark.full
@pytest.mark.parametrize("name", FIGURE_2)
def test_the_distribution_is_that_of_the_paper(name: str) -> None:
    """Section 3.1: almost 60 % to 80 % under 5 MFLOPs; more than half take 1 % or less."""
    report = tvm_edge.analyze(f"zoo:{name}", "llvm")
    spread = report.flops_distribution()
    assert 0.59 <= spread.under_5_mflop <= 0.82
    assert spread.at_most_1_percent > 0.5
    # Published counts leave out element-wise operators: 3.5 % of MobileNetV2.
    assert report.flops == pytest.approx(2 * zoo.entry(name).multiply_adds, rel=0.04)


def test_round_trip(report: CompileReport) -> None:
    fields = json.loads(json.dumps(report.to_dict()))
    assert CompileReport.from_dict(fields) == report
    assert fields["flops"] == report.flops
    assert [row["op_type"] for row in fields["operator_types"]] == [
        row.op_type for row in report.operator_types()
    ]
    spread = fields["flops_distribution"]["operators"]
    assert sum(b["count"] for b in spread["bins"]) == spread["count"]


def test_reports_of_earlier_artifacts_are_read(report: CompileReport) -> None:
    fields = json.loads(json.dumps(report.to_dict()))
    for name in ("operators", "unsupported", "flops", "operator_types", "flops_distribution"):
        del fields[name]
    old = CompileReport.from_dict(fields)
    assert old.operators == () and old.kernels == report.kernels
    assert old.summary()


def test_an_empty_report_has_a_distribution() -> None:
    """A model whose operators are all constant has a report without kernels."""
    report = CompileReport("m", "llvm", (), (), MemoryInfo(0, 0, 0, 0))
    for of in ("operators", "kernels"):
        spread = report.flops_distribution(of)
        assert (spread.count, spread.flops, spread.under_5_mflop) == (0, 0, 0)
    assert report.operator_types() == ()
    assert report.summary()


def test_edges_belong_to_the_bin_above() -> None:
    kernels = tuple(
        KernelInfo(f"k{i}", (), "llvm", "heuristic", "conv2d", flops, 0)
        for i, flops in enumerate([0.0, 5e6, 4999999.0, 1e9, 7e12])
    )
    report = CompileReport("m", "llvm", (), kernels, None)
    spread = report.flops_distribution("kernels")
    by_low = {b.low: b.count for b in spread.bins}
    assert (by_low[0], by_low[1e6], by_low[5e6], by_low[1e9]) == (1, 1, 1, 2)
    assert spread.under_5_mflop == 0.4
    assert spread.at_most_1_percent == 0.8


def relax_module() -> tvm.IRModule:
    """``relu(conv2d(x) + b)`` in two layouts, a transposed convolution, a product, a pool."""
    builder = relax.BlockBuilder()

    def const(*shape: int) -> relax.Expr:
        return relax.const(np.ones(shape, "float32"))

    x = relax.Var("x", relax.TensorType((2, 4, 8, 6), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            conv = builder.emit(
                relax.op.nn.conv2d(x, const(6, 2, 3, 3), groups=2, padding=(1, 1)), "conv"
            )
            act = builder.emit(relax.op.nn.relu(relax.op.add(conv, const(1, 6, 1, 1))), "act")
            up = builder.emit(
                relax.op.nn.conv2d_transpose(act, const(6, 5, 2, 2), strides=(2, 2)), "up"
            )
            last = builder.emit(relax.op.permute_dims(up, [0, 2, 3, 1]), "last")
            nhwc = builder.emit(
                relax.op.nn.conv2d(
                    last, const(3, 1, 5, 7), data_layout="NHWC", kernel_layout="HWIO"
                ),
                "nhwc",
            )
            pool = builder.emit(
                relax.op.nn.max_pool2d(nhwc, (2, 3), strides=(2, 3), layout="NHWC"), "pool"
            )
            result = builder.emit_output(relax.op.matmul(pool, const(7, 9)), "product")
        builder.emit_func_output(result)
    return builder.get()


def test_relax_modules_have_operators() -> None:
    report = tvm_edge.analyze(relax_module(), "mali-t860")
    found: dict[str, OperatorInfo] = {o.op_type: o for o in report.operators}
    (first, second) = (o for o in report.operators if o.op_type == "nn.conv2d")
    assert first.name == "conv"
    assert first.flops == 2 * (2 * 6 * 8 * 6) * (2 * 9)
    assert first.parameters == 6 * 2 * 9
    assert first.input_bytes == 4 * 2 * 4 * 8 * 6
    assert second.flops == 2 * (2 * 14 * 12 * 7) * (3 * 1 * 5)
    assert found["nn.conv2d_transpose"].flops == 2 * (2 * 6 * 8 * 6) * (5 * 4)
    assert found["nn.max_pool2d"].flops == (2 * 7 * 4 * 7) * 6
    assert found["matmul"].flops == 2 * (2 * 7 * 4 * 9) * 7
    assert found["nn.relu"].flops == found["add"].flops == 2 * 6 * 8 * 6
    assert found["permute_dims"].flops == 0
    assert {o.device for o in report.operators if o.flops} == {"opencl"}
    assert ("conv", "act") == (report.kernels[0].operators[0], report.kernels[0].operators[-1])


def test_operators_of_relax_modules_can_be_sent_to_the_cpu() -> None:
    report = tvm_edge.analyze(relax_module(), "mali-t860", fallback=["pool"])
    assert {o.name: o.device for o in report.operators}["pool"] == "llvm"
