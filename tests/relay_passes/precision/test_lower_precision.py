"""Which operators become float16, and where tensors are converted."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper
from tvm import relax, tirx

from tests.compiler.steps import between, fuse_kernels, legalized, simplified
from tests.onnx_models import make_model
from tvm_edge.compiler.placement import place
from tvm_edge.frontend import load_model
from tvm_edge.hardware import resolve_target
from tvm_edge.relay_passes.precision.lower_precision import LoweredPrecision, lower_precision

GENERATOR = np.random.default_rng(0)


def values(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype("float32")


def node(kind: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    """A node called as its first output."""
    names = outputs.split()
    return helper.make_node(kind, inputs.split(), names, name=names[0], **attributes)


SAME = {"pads": [1] * 4}


def lowered(
    model: onnx.ModelProto, *exceptions: str, fallback: str | list[str] = "none"
) -> LoweredPrecision:
    resolved = resolve_target("mali-t860", "llvm")
    imported = load_model(model, None)
    named = {i: "named" for i, n in enumerate(imported.nodes) if n.name in exceptions}
    with resolved.cpu.target:
        placed = place(simplified(imported.module), imported, resolved, fallback)
    result = lower_precision(placed.module, "opencl", named)
    relax.analysis.well_formed(result.module)  # raises
    names = [n.name for n in imported.nodes]
    assert {names[i] for i in result.reasons} <= set(names)
    return result


def types(model: onnx.ModelProto, *exceptions: str, **options: object) -> dict[str, str]:
    """The type of each node, by its name."""
    names = [n.name for n in load_model(model, None).nodes]
    found = lowered(model, *exceptions, **options).types  # type: ignore[arg-type]
    return {names[index]: dtype for index, dtype in found.items()}


def calls(mod: tvm.IRModule) -> list[tuple[str, str, list[str]]]:
    """Operator, type of the result and types of the arguments, in order."""
    return [
        (
            binding.value.op.name.removeprefix("relax."),
            str(binding.var.ty.dtype),
            [str(a.ty.dtype) for a in binding.value.args if isinstance(a.ty, relax.TensorType)],
        )
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]


def residual(scale: float = 1.0) -> onnx.ModelProto:
    """Two convolutions with biases, a sum of both, a third one and a softmax."""
    weights = {"w0": values(6, 3, 3, 3), "w1": values(6, 6, 3, 3) * scale, "w2": values(4, 6, 1, 1)}
    return make_model(
        [
            node("Conv", "x w0 b0", "c0", **SAME),
            node("Relu", "c0", "r0"),
            node("Conv", "r0 w1 b1", "c1", **SAME),
            node("Add", "c1 r0", "sum"),
            node("Relu", "sum", "r1"),
            node("Conv", "r1 w2", "c2"),
            node("Softmax", "c2", "y", axis=1),
        ],
        {"x": (1, 3, 8, 8)},
        ["y"],
        {**weights, "b0": values(6), "b1": values(6)},
    )


def test_types_of_a_network() -> None:
    assert types(residual()) == {
        **dict.fromkeys(["c0", "r0", "c1", "sum", "r1", "c2"], "float16"),
        "y": "float32",
    }


def test_inputs_and_outputs_keep_their_types() -> None:
    main = lowered(residual()).module["main"]
    assert str(main.params[0].ty.dtype) == str(main.ret_ty.dtype) == "float32"


def test_tensors_are_converted_twice_in_all() -> None:
    """The picture, and what softmax reads; constants are converted already."""
    result = lowered(residual())
    found = calls(result.module)
    assert [name for name, _, _ in found].count("astype") == result.casts == 2
    for name, dtype, arguments in found:
        if name == "nn.conv2d":
            assert (dtype, arguments) == ("float16", ["float16", "float16"])


def constants(mod: tvm.IRModule) -> dict[tuple[int, ...], str]:
    """Types of the constants, by their shapes."""
    found: dict[tuple[int, ...], str] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, tvm.ir.GenericConst):
            found[tuple(expr.value.shape)] = str(expr.value.dtype)

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def test_weights_are_converted_now_and_biases_are_not() -> None:
    assert constants(lowered(residual()).module) == {
        **dict.fromkeys([(6, 3, 3, 3), (6, 6, 3, 3), (4, 6, 1, 1)], "float16"),
        (1, 6, 1, 1): "float32",
    }


def test_a_bias_is_added_before_anything_is_rounded() -> None:
    """In one kernel with the convolution, whose sums are float32."""
    resolved = resolve_target("mali-t860", "llvm")
    with resolved.target:
        legal = legalized(lowered(residual()).module, resolved)
        fused = between(legal, "TraceNodes", "MeasureLoops", resolved)
    kernels = [f for g, f in fused.functions_items() if "conv2d" in g.name_hint]
    stores: list[str] = []
    for kernel in kernels:
        tvm_ffi.structural_walk(
            kernel.body, (tirx.Cast, lambda cast: stores.append(str(cast.ty.dtype)))
        )
    # Two of three convolutions store float16, the last one what softmax reads.
    assert stores.count("float16") == 2


def test_a_conversion_is_shared_by_all_who_read() -> None:
    """A tensor that three convolutions and two exponentials read, from a sigmoid's exponential."""
    weights = {f"w{i}": values(3, 3, 1, 1) for i in range(4)}
    model = make_model(
        [
            node("Exp", "x", "e"),
            *(node("Conv", f"e w{i}", f"c{i}") for i in range(3)),
            node("Sum", "c0 c1 c2", "sum"),
            node("Conv", "sum w3", "c3"),
            node("Exp", "c3", "y0"),
            node("Softmax", "c3", "y1", axis=1),
        ],
        {"x": (1, 3, 4, 4)},
        ["y0", "y1"],
        weights,
    )
    assert lowered(model).casts == 2


def test_a_conversion_stands_where_its_tensor_is_made() -> None:
    """There it is fused with the kernel that makes the tensor, and belongs to that operator."""
    found = [name for name, _, _ in calls(lowered(residual()).module)]
    assert found[-3:] == ["nn.conv2d", "astype", "nn.softmax"]
    assert found[:2] == ["astype", "nn.conv2d"]


def test_a_tail_is_one_kernel() -> None:
    """Bias, sum and ReLU behind a convolution, and the conversion behind the last one."""
    resolved = resolve_target("mali-t860", "llvm")
    with resolved.target:
        legal = legalized(lowered(residual()).module, resolved)
        fused = fuse_kernels(legal, resolved)
    kernels = [
        binding.value.args[0].name_hint
        for block in fused["main"].body.blocks
        for binding in block.bindings
    ]
    assert len(kernels) == 5, kernels  # the picture's conversion, three convolutions, softmax


def test_named_nodes_stay() -> None:
    found = types(residual(), "c1")
    assert found["c1"] == "float32"
    assert found["c0"] == found["r0"] == found["c2"] == "float16"
    # The sum reads both types, and is exact.
    assert found["sum"] == "float32"


@pytest.mark.parametrize(("scale", "said"), [(1e5, "ends at 65504"), (1e-7, "loses its digits")])
def test_constants_that_float16_cannot_hold(scale: float, said: str) -> None:
    result = lowered(residual(scale))
    ((index, reason),) = result.unfit.items()
    assert index == 2 and said in reason
    assert types(residual(scale))["c1"] == "float32"
    for binding in result.module["main"].body.blocks[0].bindings:
        for argument in getattr(binding.value, "args", []):
            if isinstance(argument, tvm.ir.GenericConst):
                assert np.isfinite(argument.value.numpy()).all()


def test_infinite_bounds_are_no_reason() -> None:
    model = make_model(
        [
            node("Conv", "x w0", "c0"),
            node("Clip", "c0 low high", "clip"),
            node("Conv", "clip w0", "y"),
        ],
        {"x": (1, 3, 4, 4)},
        ["y"],
        {
            "w0": values(3, 3, 1, 1),
            "low": np.float32(0).reshape(()),
            "high": np.float32(6).reshape(()),
        },
    )
    assert set(types(model).values()) == {"float16"}


UNFIT = {
    "Exp": {},
    "Log": {},
    "Sqrt": {},
    "Softmax": {"axis": 1},
    "Softplus": {},
    "ReduceSumSquare": {"axes": [2]},
    "InstanceNormalization": {},
}


@pytest.mark.parametrize("kind", UNFIT)
def test_unfit_operators_between_convolutions_stay(kind: str) -> None:
    more = "s b" if kind == "InstanceNormalization" else ""
    model = make_model(
        [
            node("Conv", "x w", "c0"),
            node(kind, f"c0 {more}", "unfit", **UNFIT[kind]),
            node("Abs", "unfit", "positive"),
            node("Conv", "positive w", "y"),
        ],
        {"x": (1, 3, 4, 4)},
        ["y"],
        {"w": values(3, 3, 1, 1)} | ({"s": values(3), "b": values(3)} if more else {}),
    )
    found = types(model)
    assert found["unfit"] == found["positive"] == "float32"
    assert found["c0"] == found["y"] == "float16"


def test_what_follows_the_last_product_stays() -> None:
    """Boxes are decoded with all of their digits; nothing in front of a product is slowed."""
    model = make_model(
        [
            node("Conv", "x w", "c0"),
            node("Sigmoid", "c0", "s"),
            node("Mul", "s stride", "scaled"),
            node("Reshape", "scaled shape", "boxes"),
            node("Conv", "s w", "c1"),
        ],
        {"x": (1, 3, 4, 4)},
        ["boxes", "c1"],
        {"w": values(3, 3, 1, 1), "stride": np.float32([32]), "shape": np.int64([1, 48])},
    )
    assert types(model) == {
        "c0": "float16",
        "s": "float16",
        "scaled": "float32",
        "boxes": "float32",
        "c1": "float16",
    }


def test_what_precedes_the_first_product_stays() -> None:
    model = make_model(
        [node("Sub", "x mean", "centred"), node("Conv", "centred w", "y")],
        {"x": (1, 3, 4, 4)},
        ["y"],
        {"w": values(3, 3, 1, 1), "mean": values(1, 3, 1, 1)},
    )
    assert types(model) == {"centred": "float32", "y": "float16"}


def test_parts_of_a_split_and_their_concatenation() -> None:
    model = make_model(
        [
            node("Conv", "x w", "c0"),
            node("Split", "c0", "s0 s1", axis=1),
            node("Relu", "s1", "r"),
            node("Concat", "r s0", "whole", axis=1),
            node("Conv", "whole w", "y"),
        ],
        {"x": (1, 4, 4, 4)},
        ["y"],
        {"w": values(4, 4, 1, 1)},
    )
    assert set(types(model).values()) == {"float16"}
    assert lowered(model).casts == 2


def test_a_product_of_what_is_computed() -> None:
    """Attention: softmax stays float32, and both products around it are float16."""
    model = make_model(
        [
            node("MatMul", "q k", "scores"),
            node("Softmax", "scores", "shares", axis=-1),
            node("MatMul", "shares v", "y"),
        ],
        {"q": (2, 5, 8), "k": (2, 8, 7), "v": (2, 7, 8)},
        ["y"],
    )
    assert types(model) == {"scores": "float16", "shares": "float32", "y": "float16"}
    assert lowered(model).casts == 6  # three inputs, scores, shares and the result


def test_operators_on_the_cpu_stay() -> None:
    result = lowered(residual(), fallback=["c1"])
    assert types(residual(), fallback=["c1"])["c1"] == "float32"
    copied = [
        str(b.var.ty.dtype)
        for block in result.module["main"].body.blocks
        for b in block.bindings
        if isinstance(b.value, relax.Call) and b.value.op.name == "relax.to_vdevice"
    ]
    assert copied and set(copied) == {"float32"}


def test_a_model_of_float16_stays_as_it_is() -> None:
    kinds = {"x": TensorProto.FLOAT16, "y": TensorProto.FLOAT16}
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "y")]
    weights = {"w": values(3, 3, 1, 1).astype("float16")}
    model = make_model(nodes, {"x": (1, 3, 4, 4)}, ["y"], weights, dtypes=kinds)
    result = lowered(model)
    assert result.casts == 0
    assert {dtype for _, dtype, _ in calls(result.module)} == {"float16"}


def test_branches_read_float32() -> None:
    """Operators in an If are not converted, and read float32 tensors as in the model."""
    branch = [
        helper.make_graph(
            [helper.make_node(kind, ["c0"], [f"{kind}_out"])],
            kind,
            [],
            [helper.make_tensor_value_info(f"{kind}_out", TensorProto.FLOAT, (1, 3, 4, 4))],
        )
        for kind in ("Relu", "Neg")
    ]
    model = make_model(
        [
            node("Conv", "x w", "c0"),
            node("If", "choice", "chosen", then_branch=branch[0], else_branch=branch[1]),
            node("Conv", "chosen w", "y"),
        ],
        {"x": (1, 3, 4, 4), "choice": ()},
        ["y"],
        {"w": values(3, 3, 1, 1)},
        dtypes={"choice": TensorProto.BOOL},
    )
    result = lowered(model)
    assert [n for n, d, _ in calls(result.module) if n == "nn.conv2d" and d == "float16"]
