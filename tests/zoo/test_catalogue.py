"""What the zoo says of itself."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys

import pytest

from tvm_edge import zoo
from tvm_edge.errors import InputError


def test_the_networks_are_there() -> None:
    assert zoo.names() == tuple(sorted(zoo.names()))
    assert {
        "deeplab_v3",
        "vgg19",
        "googlenet",
        "shufflenet_v2",
        "vgg16",
        "densenet121",
        "inception_v3",
        "mobilenet_v1",
        "mobilenet_v2",
        "nasnet_mobile",
        "resnet50_v1",
        "resnet50_v2",
        "squeezenet1_0",
        "ssd_mobilenet_v1",
        "ssd_mobilenet_v1_512",
        "ssd_resnet50_v1",
        "faster_rcnn_head",
        "yolov1",
        "yolov1_large",
        "yolov1_medium",
        "yolov1_small",
        "yolov3",
    } <= set(zoo.names())


@pytest.mark.parametrize("name", zoo.names())
def test_every_entry_is_complete_and_has_its_function(name: str) -> None:
    entry = zoo.entry(name)
    family = importlib.import_module(f"tvm_edge.zoo.networks.{entry.family}")
    assert entry.name == name
    assert callable(getattr(family, name))
    assert name in family.__all__
    assert min(entry.image_size) >= entry.min_image_size
    assert entry.flops == 2 * entry.multiply_adds
    assert entry.source


def test_an_entry_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        zoo.entry("mobilenet_v2").parameters = 1  # type: ignore[misc]


@pytest.mark.parametrize("unknown", ["resnet5", "", None])
def test_an_unknown_name_is_refused_with_what_is_known(unknown: str) -> None:
    with pytest.raises(InputError, match="resnet50_v1") as caught:
        zoo.entry(unknown)
    assert caught.value.name == "name"
    assert caught.value.got == repr(unknown)


def test_reading_the_catalogue_and_drawing_inputs_need_no_onnx() -> None:
    # Not even importable: the runtime tier ships without onnx.
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "from tvm_edge import zoo\n"
        "[zoo.entry(n) for n in zoo.names()]; zoo.sample_input('mobilenet_v2')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_zoo_pulls_in_neither_onnx_nor_a_compiler_nor_a_runtime() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import tvm_edge.zoo\n"
        "print({'onnx', 'tvm', 'onnxruntime', 'torch'} & (set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
