"""The models are valid ONNX, as an exporter writes it, and reproducible."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.marks import in_full
from tests.zoo.networks import marked, reduced
from tvm_edge import zoo

YOLO = ("yolov1", "yolov1_large", "yolov1_medium", "yolov1_small")
DETECTIONS = {
    "selected": ["detections", 3],
    "detection_boxes": ["detections", 4],
    "detection_scores": ["detections"],
    "detection_classes": ["detections"],
}
# Boxes that each detector scores at its default size, and classes.
CANDIDATES = {
    "faster_rcnn_head": (100, 80),
    "ssd_mobilenet_v1": (1917, 90),
    "ssd_mobilenet_v1_512": (5118, 90),
    "ssd_resnet50_v1": (6132, 20),
    **dict.fromkeys(YOLO, (98, 20)),
    "yolov3": (10647, 80),
}
# Networks that normalise before the convolution, and what else than convolutions is normalised.
PREACTIVATED = {
    "densenet121": {"AveragePool", "Concat", "MaxPool"},
    "nasnet_mobile": {"Concat"},
    "resnet50_v2": {"Add", "MaxPool"},
}
WITHOUT_NORMALISATION = {"squeezenet1_0", "vgg16", "vgg19", *YOLO}


def shape(info: onnx.ValueInfoProto) -> list[int | str]:
    return [d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim]


@pytest.mark.parametrize("name", marked())
def test_the_checker_accepts_it(name: str, full: Callable[[str], onnx.ModelProto]) -> None:
    model = full(name)
    onnx.checker.check_model(model, full_check=True)
    assert [o.version for o in model.opset_import] == [17]
    assert model.ir_version <= 10


@pytest.mark.parametrize("name", marked())
def test_inputs_and_outputs(name: str, full: Callable[[str], onnx.ModelProto]) -> None:
    graph = full(name).graph
    assert {i.name: shape(i) for i in graph.input} == {"data": [1, 3, *zoo.entry(name).image_size]}
    outputs = {o.name: shape(o) for o in graph.output}
    if zoo.entry(name).task == "classification":
        assert outputs == {"logits": [1, 1000]}
    elif zoo.entry(name).task == "segmentation":
        size = zoo.entry(name).image_size
        assert outputs == {"logits": [1, 21, *size], "segmentation": [1, *size]}
    else:
        candidates, classes = CANDIDATES[name]
        dense = {"boxes": [1, candidates, 4], "scores": [1, classes, candidates]}
        if name == "faster_rcnn_head":  # each class has its own boxes
            dense = {"boxes": [classes, candidates, 4], "scores": [classes, 1, candidates]}
        assert outputs == {**dense, **DETECTIONS}


@pytest.mark.parametrize("name", reduced())
def test_everything_is_named_once_and_has_a_shape(
    name: str, small: Callable[[str], onnx.ModelProto]
) -> None:
    graph = small(name).graph
    nodes = [n.name for n in graph.node]
    tensors = [o for n in graph.node for o in n.output] + [i.name for i in graph.initializer]
    assert len(set(nodes)) == len(nodes)
    assert len(set(tensors)) == len(tensors)
    assert all(tensors + nodes)
    known = {v.name: shape(v) for v in (*graph.value_info, *graph.output)}
    assert set(known) == {o for n in graph.node for o in n.output}
    assert all(all(dims) for dims in known.values())
    unused = {i.name for i in graph.initializer} - {i for n in graph.node for i in n.input}
    assert not unused


@pytest.mark.parametrize("name", reduced())
def test_batch_normalisation_is_left_to_the_compiler(
    name: str, small: Callable[[str], onnx.ModelProto]
) -> None:
    graph = small(name).graph
    producer = {n.output[0]: n for n in graph.node}
    normalisations = [n for n in graph.node if n.op_type == "BatchNormalization"]
    before = [producer[n.input[0]] for n in normalisations]
    convolutions = {n.name for n in graph.node if n.op_type == "Conv"}
    biased = {n.name for n in graph.node if n.op_type == "Conv" and len(n.input) == 3}
    normalised = {n.name for n in before} & convolutions
    assert not biased & normalised  # a bias before a normalisation would be redundant
    if name in PREACTIVATED:
        assert not biased
        # The other normalisations are of sums, too late to be folded backwards.
        assert {n.op_type for n in before} == {"Conv", *PREACTIVATED[name]}
        return
    assert biased | normalised == convolutions
    assert {n.name for n in before} == normalised
    if name in WITHOUT_NORMALISATION:
        assert not normalised
    else:
        assert len(normalised) > 25


def test_resnet_v1_has_its_stride_in_the_first_1x1(
    small: Callable[[str], onnx.ModelProto],
) -> None:
    strided = {
        n.name
        for n in small("resnet50_v1").graph.node
        if n.op_type == "Conv"
        and [2, 2] in [list(a.ints) for a in n.attribute if a.name == "strides"]
    }
    assert strided == {"stem/conv"} | {
        f"stage{s}/block0/{conv}" for s in (2, 3, 4) for conv in ("conv1", "shortcut")
    }


@pytest.mark.parametrize("name", marked())
def test_it_is_the_same_on_other_kernels_of_blas(
    name: str, small: Callable[[str], onnx.ModelProto]
) -> None:
    image_size = shape(small(name).graph.input[0])[2]
    # Near to another machine: one thread, and OpenBLAS's kernels for a CPU without AVX and FMA.
    code = (
        "import sys; from tvm_edge import zoo\n"
        f"m = zoo.build({name!r}, image_size={image_size}, width=0.25)\n"
        "sys.stdout.buffer.write(m.SerializeToString(deterministic=True))"
    )
    environment = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
        "OPENBLAS_CORETYPE": "Prescott",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        check=True,
        capture_output=True,
        env=environment,
    )
    assert done.stdout == small(name).SerializeToString(deterministic=True)


@pytest.mark.parametrize("name", ["mobilenet_v2", *in_full("squeezenet1_0")])
def test_a_full_model_is_built_twice_the_same(
    name: str, full: Callable[[str], onnx.ModelProto]
) -> None:
    again = zoo.build(name).SerializeToString(deterministic=True)
    assert again == full(name).SerializeToString(deterministic=True)


def test_another_seed_changes_every_weight(small: Callable[[str], onnx.ModelProto]) -> None:
    one = small("mobilenet_v2")
    other = zoo.build("mobilenet_v2", image_size=64, width=0.25, seed=1)
    for a, b in zip(one.graph.initializer, other.graph.initializer, strict=True):
        assert a.name == b.name
        if a.name.endswith((".weight", ".gamma", ".beta", ".mean", ".variance", ".bias")):
            assert not np.array_equal(numpy_helper.to_array(a), numpy_helper.to_array(b)), a.name


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("name", reduced())
@pytest.mark.parametrize(
    "options",
    [
        {"image_size": (96, 160), "width": 0.25},
        {"image_size": (160, 97), "width": 0.1, "batch": 3},
        *in_full({"image_size": None, "width": 0.25}),
    ],
    ids=str,
)
def test_reduced_models_run(
    name: str, options: dict[str, Any], session: Callable[..., Any]
) -> None:
    if options["image_size"] is None:
        options = {**options, "image_size": zoo.entry(name).min_image_size}
    model = zoo.build(name, **options)
    feeds = zoo.sample_input(model)
    size = options["image_size"]
    height, width = (size, size) if isinstance(size, int) else size
    assert feeds["data"].shape == (options.get("batch", 1), 3, height, width)
    outputs = session(model)(feeds)
    for info in model.graph.output:
        got, declared = outputs[info.name].shape, shape(info)
        assert [g for g, d in zip(got, declared, strict=True) if d != "detections"] == [
            d for d in declared if d != "detections"
        ]
        assert np.isfinite(outputs[info.name]).all()
    dense = outputs.get("logits", outputs.get("scores"))
    assert dense.std() > (0.01 if "scores" in outputs else 0.02)  # few of a detector's are high
