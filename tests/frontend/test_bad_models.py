"""Models that must be refused, each with its own error that names the object and the next step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_edge
from tests.onnx_models import conv_relu, make_model
from tvm_edge import InputError, InvalidModelError, UnsupportedOperatorError


def refused(model: object, error: type[Exception], *fragments: str, **options: object) -> None:
    """Compile `model` and check the error's type, exit code and message."""
    with pytest.raises(error) as caught:
        tvm_edge.compile(model, "llvm", **options)
    assert type(caught.value) is error
    assert caught.value.exit_code == 4
    for fragment in fragments:
        assert fragment in str(caught.value)


def edited(edit: Callable[[onnx.ModelProto], None]) -> onnx.ModelProto:
    """The small model after `edit`."""
    model = conv_relu()
    edit(model)
    return model


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "absent.onnx"
    refused(path, InvalidModelError, str(path), "No such file", "check the path")


def test_folder(tmp_path: Path) -> None:
    refused(tmp_path, InvalidModelError, str(tmp_path), "directory")


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"not a model at all", b"\xff" * 5000])
def test_not_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    refused(path, InvalidModelError, str(path), "again")
    refused(content, InvalidModelError, "the bytes")


def test_truncated_at_every_eighth() -> None:
    content = conv_relu().SerializeToString()
    for eighth in range(8):
        refused(content[: len(content) * eighth // 8], InvalidModelError)


def test_not_a_model_type() -> None:
    refused(3.5, InvalidModelError, "float", "pass a path")


def test_unknown_zoo_name() -> None:
    refused("zoo:resnet5_v1", InputError, "resnet50_v1")


def test_future_opset() -> None:
    newest = onnx.defs.onnx_opset_version()

    def edit(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = newest + 1

    refused(edited(edit), InvalidModelError, f"opset {newest + 1}", f"opset_version={newest}")


def test_no_opset() -> None:
    refused(edited(lambda m: m.ClearField("opset_import")), InvalidModelError, "opset_import")


def test_ancient_ir_version() -> None:
    def edit(model: onnx.ModelProto) -> None:
        model.ir_version = 2

    refused(edited(edit), InvalidModelError, "IR version 2", "version_converter")


def test_cyclic() -> None:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.node[0].input[0] = "relu_out"

    refused(edited(edit), InvalidModelError, "cyclic")


def test_dangling_input() -> None:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.node[1].input[0] = "nowhere"

    refused(edited(edit), InvalidModelError, "nowhere")


def test_duplicate_output() -> None:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.node[1].output[0] = "conv_out"

    refused(edited(edit), InvalidModelError, "conv_out")


def test_shape_inconsistent() -> None:
    def edit(model: onnx.ModelProto) -> None:
        wrong = np.zeros((8, 5, 3, 3), "float32")  # 5 input channels where the data has 3
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(wrong, "weight"))

    refused(edited(edit), InvalidModelError)


def test_weight_shorter_than_its_shape() -> None:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]

    refused(edited(edit), InvalidModelError, "weight")


def test_unknown_operator_names_node() -> None:
    model = conv_relu()
    model.graph.node[1].op_type = "Rleu"
    refused(model, InvalidModelError, "Rleu")


def test_custom_domain_is_not_taken_for_the_standard_operator() -> None:
    model = conv_relu()
    model.graph.node[1].domain = "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedOperatorError) as caught:
        tvm_edge.compile(model, "llvm")
    assert caught.value.operators == ("com.example.Relu",)
    assert "relu" in str(caught.value)


def test_all_unsupported_operators_are_listed_at_once() -> None:
    nodes = [
        helper.make_node("Gradient", ["x"], ["a"], name="first", domain="ai.onnx.preview.training"),
        helper.make_node("Mystery", ["a"], ["b"], name="second", domain="com.example"),
        helper.make_node("Mystery", ["b"], ["y"], name="third", domain="com.example"),
    ]
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    imports = [
        helper.make_opsetid("", 17),
        helper.make_opsetid("com.example", 1),
        helper.make_opsetid("com.other", 1),
    ]
    nodes_model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    nodes_model.graph.node[0].domain = "com.other"
    with pytest.raises(UnsupportedOperatorError) as caught:
        tvm_edge.compile(nodes_model, "llvm")
    assert caught.value.operators == ("com.example.Mystery", "com.other.Gradient")
    for name in ("first", "second", "third"):
        assert name in str(caught.value)


def test_input_shapes_fix_dynamic_dimensions() -> None:
    model = conv_relu(batch="N")
    assert tvm_edge.compile(model, "llvm").inputs[0].shape == ("N", 3, 16, 16)
    compiled = tvm_edge.compile(model, "llvm", input_shapes={"data": (2, 3, 16, 16)})
    assert compiled.inputs[0].shape == (2, 3, 16, 16)
    assert compiled.outputs[0].shape == (2, 8, 1, 1)


@pytest.mark.parametrize(
    ("shapes", "fragment"),
    [
        ({"dta": (1, 3, 16, 16)}, "did you mean 'data'"),
        ({"data": (1, 3, 16)}, "4"),
        ({"data": (0, 3, 16, 16)}, "at least 1"),
        ({"data": (-2, 3, 16, 16)}, "lengths, and names of dimensions that are open"),
        ({"data": (1, 3, 16, 1.5)}, "lengths, and names of dimensions that are open"),
    ],
)
def test_input_shapes_that_do_not_fit(shapes: dict[str, tuple[int, ...]], fragment: str) -> None:
    refused(conv_relu(batch="N"), InputError, fragment, input_shapes=shapes)


def test_zero_size_batch() -> None:
    refused(conv_relu(batch=0), InputError, "'data'", "at least 1")


def test_input_shape_that_the_graph_cannot_take() -> None:
    refused(conv_relu(), InvalidModelError, input_shapes={"data": (1, 4, 16, 16)})


def test_sequence_input() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [1])
    graph = helper.make_graph(
        [helper.make_node("SequenceLength", ["s"], ["n"])],
        "test",
        [sequence],
        [helper.make_tensor_value_info("n", TensorProto.INT64, [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    refused(model, UnsupportedOperatorError, "'s'", "sequence")


def test_non_finite_weights_compile_with_a_warning() -> None:
    model = conv_relu()
    bias = np.zeros(8, "float32")
    bias[3] = np.inf
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(bias, "bias"))
    with pytest.warns(tvm_edge.TvmEdgeWarning, match="'bias'"):
        compiled = tvm_edge.compile(model, "llvm")
    assert "'bias'" in compiled.report.warnings[0]
    pooled = compiled.run({"data": np.ones((1, 3, 16, 16), "float32")})["pooled"].ravel()
    assert np.isinf(pooled[3]) and np.isfinite(np.delete(pooled, 3)).all()


class TestExternalData:
    """Weights in a file beside the model."""

    @staticmethod
    def save(folder: Path) -> Path:
        path = folder / "model.onnx"
        onnx.save(
            conv_relu(),
            path,
            save_as_external_data=True,
            location="weights.bin",
            size_threshold=0,
        )
        return path

    @staticmethod
    def relocate(path: Path, location: str) -> None:
        model = onnx.load(path, load_external_data=False)
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location
        path.write_bytes(model.SerializeToString())

    def test_loads(self, tmp_path: Path, compiled_small: tvm_edge.CompiledModel) -> None:
        compiled = tvm_edge.compile(self.save(tmp_path), "llvm")
        data = {"data": np.ones((1, 3, 16, 16), "float32")}
        assert np.array_equal(compiled.run(data)["pooled"], compiled_small.run(data)["pooled"])

    @pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname", "a/../../weights.bin"])
    def test_leaving_the_folder(self, tmp_path: Path, location: str) -> None:
        inner = tmp_path / "inner"
        inner.mkdir()
        path = self.save(inner)
        (inner / "weights.bin").rename(tmp_path / "weights.bin")
        self.relocate(path, location)
        refused(path, InvalidModelError, "outside the model's folder", location)

    def test_symlink_out_of_the_folder(self, tmp_path: Path) -> None:
        inner = tmp_path / "inner"
        inner.mkdir()
        path = self.save(inner)
        (inner / "weights.bin").rename(tmp_path / "secret.bin")
        (inner / "weights.bin").symlink_to(tmp_path / "secret.bin")
        refused(path, InvalidModelError, "outside the model's folder")

    def test_missing(self, tmp_path: Path) -> None:
        path = self.save(tmp_path)
        (tmp_path / "weights.bin").unlink()
        refused(path, InvalidModelError, "weights.bin", "missing")

    def test_truncated(self, tmp_path: Path) -> None:
        path = self.save(tmp_path)
        data = (tmp_path / "weights.bin").read_bytes()
        (tmp_path / "weights.bin").write_bytes(data[: len(data) // 2])
        refused(path, InvalidModelError, "weights.bin")

    def test_without_a_folder(self, tmp_path: Path) -> None:
        content = self.save(tmp_path).read_bytes()
        refused(content, InvalidModelError, "pass the path")


def test_unsorted_nodes_are_sorted(compiled_small: tvm_edge.CompiledModel) -> None:
    model = conv_relu()
    nodes = list(model.graph.node)[::-1]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
    data = {"data": np.ones((1, 3, 16, 16), "float32")}
    result = tvm_edge.compile(model, "llvm").run(data)["pooled"]
    assert np.array_equal(result, compiled_small.run(data)["pooled"])


def test_the_users_model_is_not_changed() -> None:
    model = conv_relu(batch="N")
    before = model.SerializeToString(deterministic=True)
    tvm_edge.analyze(model, "llvm", input_shapes={"data": (1, 3, 16, 16)})
    assert model.SerializeToString(deterministic=True) == before


def test_converter_failure_names_the_operator() -> None:
    """TVM's importer refuses a run-time limit; its print of the operator does not leak."""
    model = make_model(
        [helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["y"], name="nms")],
        {"boxes": (1, 4, 4), "scores": (1, 1, 4), "most": (1,)},
        ["y"],
        dtypes={"most": TensorProto.INT64, "y": TensorProto.INT64},
    )
    refused(model, UnsupportedOperatorError, "NonMaxSuppression", "max_output_boxes_per_class")


@pytest.mark.parametrize(
    ("boxes", "scores", "iou", "message"),
    [
        ((1, 4, 4), (1, 1, 4), 1.5, "iou_threshold 1.5; give it one from 0 to 1"),
        ((1, 4, 4), (1, 1, 4), float("nan"), "iou_threshold nan"),
        ((1, 4, 4), (1, 1, 5), 0.5, "do not fit"),
        ((1, 4, 5), (1, 1, 4), 0.5, "do not fit"),
        ((2, 4, 4), (1, 1, 4), 0.5, "do not fit"),
    ],
)
def test_senseless_suppression(
    boxes: tuple[int, ...], scores: tuple[int, ...], iou: float, message: str
) -> None:
    model = make_model(
        [helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["y"])],
        {"boxes": boxes, "scores": scores},
        ["y"],
        {"most": np.array([3]), "iou": np.array([iou], "float32")},
        dtypes={"y": TensorProto.INT64},
    )
    refused(model, InvalidModelError, message)


@pytest.mark.parametrize(
    ("op", "index"),
    [("Gather", 4), ("Gather", -5), ("GatherElements", 2**40), ("GatherND", -(2**63))],
)
def test_constant_index_out_of_range(op: str, index: int) -> None:
    """A kernel would read behind its tensor."""
    shape = (4, 5) if op == "GatherElements" else (1, 1)
    model = make_model(
        [helper.make_node(op, ["x", "i"], ["y"], name="pick")],
        {"x": (4, 5)},
        ["y"],
        {"i": np.full(shape, index, "int64")},
    )
    refused(model, InvalidModelError, op, str(index), "length 4")


def test_tensor_that_no_memory_holds() -> None:
    """Its size in bytes would overflow, and less be allocated than kernels write."""
    model = make_model(
        [helper.make_node("Expand", ["x", "shape"], ["y"], name="expand")],
        {"x": (1,)},
        ["y"],
        {"shape": np.asarray([2**40, 2**40])},
    )
    refused(model, InvalidModelError, str(2**40), "no memory")


def test_grid_sample_between_mirrors_without_distance() -> None:
    node = helper.make_node(
        "GridSample", ["x", "g"], ["y"], "sample", padding_mode="reflection", align_corners=1
    )
    model = make_model([node], {"x": (1, 2, 1, 4), "g": (1, 2, 2, 2)}, ["y"], opset=20)
    refused(model, UnsupportedOperatorError, "GridSample", "single pixel")


def test_tensor_of_too_many_dimensions() -> None:
    """Scheduling 255 loops takes minutes."""
    model = make_model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshape")],
        {"x": (1,)},
        ["y"],
        {"shape": np.ones(255, "int64")},
    )
    refused(model, InvalidModelError, "255 dimensions", "at most 32")


def test_whatever_the_compiler_raises_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM meets a model it did not foresee with any exception; the cause is kept."""

    def fail(*_: object) -> None:
        raise KeyError("deep inside")

    monkeypatch.setattr("tvm_edge.compiler.kernel_passes.schedule_kernels", fail)
    with pytest.raises(tvm_edge.CompilationError, match="deep inside") as caught:
        tvm_edge.compile(conv_relu(), "llvm")
    assert "'lower', pass ScheduleKernels" in str(caught.value) and "report it" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("offset", "-1"),
        ("offset", "x"),
        ("offset", str(2**62)),
        ("length", str(2**63)),
        ("location", "a" * 5000),
        ("location", "a\0b"),
    ],
)
def test_external_data_that_is_nowhere(tmp_path: Path, key: str, value: str) -> None:
    path = TestExternalData.save(tmp_path)
    model = onnx.load(path, load_external_data=False)
    tensor = model.graph.initializer[0]
    for entry in [e for e in tensor.external_data if e.key == key]:
        tensor.external_data.remove(entry)
    tensor.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    refused(path, InvalidModelError, tensor.name)
