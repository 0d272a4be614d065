"""Exports by torch, torchvision, timm, ultralytics and segmentation-models-pytorch, by name.

Names end with ``.dynamo`` where that exporter is used. The files are written by
:mod:`benchmarks.models.export_writers`, in an environment of :data:`REQUIREMENTS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.models.against_onnx_runtime import Case, Detections

__all__ = ["EXPORTS", "REQUIREMENTS", "Export"]

REQUIREMENTS = (
    "torch==2.14.1",
    "torchvision==0.29.1",
    "timm==1.0.31",
    "ultralytics==8.4.190",
    "segmentation-models-pytorch==0.6.0",
    "opencv-python-headless==5.0.0.93",
    "numpy==2.4.6",
    "onnx==1.23.2",
    "onnxruntime==1.32.0",
    "onnxscript==0.7.2",
    "onnx-ir==1.1.0",
    "onnxslim==0.1.98",
)
"""Packages of the environment of the exports."""

Inputs = Mapping[str, tuple[Sequence[int], str]]


@dataclass(frozen=True)
class Export:
    """A model and how it is exported.

    Attributes
    ----------
    package : str
        That defines the model.
    model : str
        By its name there.
    inputs : mapping of str to (shape, values)
        As of :class:`~benchmarks.models.against_onnx_runtime.Case`; exported with these shapes too,
        but for the axes that are `dynamic`.
    options : mapping
        Of the function that makes the model, or of ultralytics' ``export``.
    dynamo : bool
        The exporter of ``torch.export``; else that of TorchScript.
    dynamic : mapping of str to mapping of int to str
        Axes that stay open: input to axis to name.
    traced : mapping of str to sequence of int
        Shapes to export with where they are others than those of `inputs`.
    opset : int
    outputs : sequence of str
        Names, where the detections' are needed.
    detections : Detections, optional
    """

    package: str
    model: str
    inputs: Inputs
    options: Mapping[str, Any] = field(default_factory=dict)
    dynamo: bool = False
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    traced: Mapping[str, Sequence[int]] = field(default_factory=dict)
    opset: int = 17
    outputs: Sequence[str] = ()
    detections: Detections | None = None

    def case(self, name: str) -> Case:
        """The case that this file is."""
        versions = dict(requirement.split("==") for requirement in REQUIREMENTS)
        exporter = "torch.export" if self.dynamo else "TorchScript"
        source = f"{self.package}=={versions[self.package]}, {exporter}"
        return Case(name, source, self.inputs, self.detections)


def _image(size: int, height: int = 0) -> Inputs:
    return {"image": ((1, 3, height or size, size), "image")}


# ------------------------------------------------------------------ torchvision

_DETECTOR_OUTPUTS = ("boxes", "scores", "labels")
_FEW = {"rpn_pre_nms_top_n_test": 200, "rpn_post_nms_top_n_test": 60, "box_detections_per_img": 20}
_SMALL = {"min_size": 192, "max_size": 256}
_DENSE_FEW = {"topk_candidates": 100, "detections_per_img": 20}
_ANY_SIZE = {"image": {1: "height", 2: "width"}}


def _detector(
    model: str, *, more: Sequence[str] = (), dynamic: bool = False, **options: Any
) -> Export:
    size = 320 if model.startswith("ssdlite") else 300 if model.startswith("ssd") else 192
    threshold = 0.001 if "ssd" in model else 0.05
    outputs = (*_DETECTOR_OUTPUTS, *more)
    return Export(
        "torchvision",
        f"detection.{model}",
        {"image": ((3, size, size + 32 * dynamic), "image")},
        options,
        dynamic=_ANY_SIZE if dynamic else {},
        traced={"image": (3, size, size)} if dynamic else {},
        outputs=outputs,
        detections=Detections(outputs, "scores", threshold),
    )


def _detectors() -> dict[str, Export]:
    two_stage = {**_SMALL, **_FEW}
    one_stage = {**_SMALL, **_DENSE_FEW}
    kinds: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "fasterrcnn_resnet50_fpn": (two_stage, ()),
        "fasterrcnn_mobilenet_v3_large_320_fpn": (two_stage, ()),
        "maskrcnn_resnet50_fpn": (two_stage, ("masks",)),
        "keypointrcnn_resnet50_fpn": (two_stage, ("keypoints", "keypoints_scores")),
        "retinanet_resnet50_fpn": (one_stage, ()),
        "fcos_resnet50_fpn": (one_stage, ()),
        "ssd300_vgg16": (_DENSE_FEW, ()),
        "ssdlite320_mobilenet_v3_large": (_DENSE_FEW, ()),
    }
    found = {
        f"torchvision.{model}": _detector(model, more=more, **options)
        for model, (options, more) in kinds.items()
    }
    # torch.export refuses all of them: their control flow depends on data.
    for model in ("fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large"):
        options, more = kinds[model]
        found[f"torchvision.{model}.any_size"] = _detector(
            model, more=more, dynamic=True, **options
        )
    return found


def _torchvision() -> dict[str, Export]:
    names = [
        ("mobilenet_v2", 160, False),
        ("mobilenet_v3_small", 160, True),
        ("shufflenet_v2_x0_5", 160, False),
        ("squeezenet1_1", 160, True),
        ("mnasnet0_5", 160, False),
        ("resnet18", 160, True),
        ("densenet121", 128, False),
        ("googlenet", 160, True),
        ("regnet_y_400mf", 160, False),
        ("convnext_tiny", 224, False),
        ("swin_t", 224, False),
        ("maxvit_t", 224, False),
        ("mobilenet_v3_large", 224, False),
    ]
    found = {
        f"torchvision.{model}" + ".dynamo" * dynamo: Export(
            "torchvision",
            model,
            _image(size),
            {"aux_logits": False, "init_weights": True} if model == "googlenet" else {},
            dynamo=dynamo,
            opset=18 if dynamo else 17,
        )
        for model, size, dynamo in names
    }
    for model in ("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large", "fcn_resnet50"):
        found[f"torchvision.{model}"] = Export(
            "torchvision", f"segmentation.{model}", _image(160, 128), {"weights_backbone": None}
        )
    any_size = {"image": {0: "batch", 2: "height", 3: "width"}}
    found["torchvision.lraspp_mobilenet_v3_large.any_size"] = Export(
        "torchvision",
        "segmentation.lraspp_mobilenet_v3_large",
        _image(192, 128),
        {"weights_backbone": None},
        dynamic=any_size,
        traced={"image": (1, 3, 160, 160)},
    )
    found["torchvision.resnet18.any_size"] = Export(
        "torchvision",
        "resnet18",
        {"image": ((2, 3, 128, 96), "image")},
        dynamic=any_size,
        traced={"image": (1, 3, 160, 160)},
    )
    clip = {"image": ((1, 3, 8, 64, 64), "image")}
    found["torchvision.mc3_18"] = Export("torchvision", "video.mc3_18", clip)
    pair = {name: ((1, 3, 128, 160), "image") for name in ("image", "next")}
    found["torchvision.raft_small"] = Export(
        "torchvision", "optical_flow.raft_small", pair, {"num_flow_updates": 4}
    )
    return found


# ------------------------------------------------------------------ timm

# Every second by each exporter, so that either meets attention, gates and odd convolutions.
_TIMM = """
convnext_atto convnextv2_atto swin_tiny_patch4_window7_224 swinv2_cr_tiny_ns_224
maxvit_rmlp_pico_rw_256 coatnet_pico_rw_224 levit_128s efficientformer_l1 efficientformerv2_s0
mobilevit_xxs mobilevitv2_050 efficientnet_b0 tf_efficientnet_lite0 regnetx_002 regnety_002
ghostnet_050 ghostnetv2_100 repvgg_a0 vit_tiny_patch16_224 deit_tiny_distilled_patch16_224
mixer_s32_224 gmlp_ti16_224 poolformer_s12 edgenext_xx_small fastvit_t8 tinynet_e
mobilenetv3_small_050 mobilenetv4_conv_small lcnet_050 mobileone_s0 resnet10t botnet26t_256
gcresnext26ts lambda_resnet26t cs3darknet_s hrnet_w18_small xcit_nano_12_p16_224 pvt_v2_b0
crossvit_tiny_240 starnet_s1 efficientvit_b0 efficientvit_m0 tiny_vit_5m_224 repvit_m0_9
swiftformer_xs mambaout_femto skresnet18 nf_regnet_b0
""".split()
_TIMM_OPTIONS: dict[str, dict[str, Any]] = {
    "swin_tiny_patch4_window7_224": {"embed_dim": 48, "depths": (2, 2, 2, 2)},
    "swinv2_cr_tiny_ns_224": {"embed_dim": 48, "depths": (2, 2, 2, 2)},
}
_TIMM_SIZES = {
    "crossvit_tiny_240": 240,
    "edgenext_xx_small": 256,
    "fastvit_t8": 256,
    "gcresnext26ts": 256,
    "mobilevit_xxs": 256,
    "mobilevitv2_050": 256,
    "nf_regnet_b0": 192,
    "resnet10t": 176,
    "tinynet_e": 106,
}


def _timm() -> dict[str, Export]:
    found = {}
    for place, model in enumerate(_TIMM):
        size = 256 if model.endswith("256") else _TIMM_SIZES.get(model, 224)
        dynamo = place % 2 == 1
        found[f"timm.{model}" + ".dynamo" * dynamo] = Export(
            "timm",
            model,
            _image(size),
            _TIMM_OPTIONS.get(model, {}),
            dynamo=dynamo,
            opset=18 if dynamo else 17,
        )
    return found


# ------------------------------------------------------------------ ultralytics

_YOLO = """
yolov5n yolov8n yolov9t yolov10n yolo11n yolo12n yolo26n yolov3-tiny
yolov8n-seg yolo11n-seg yolo26n-seg yolov8n-pose yolo11n-pose yolov8n-cls yolo11n-cls
yolov8n-obb yolo11n-obb rtdetr-l
""".split()
_YOLO_NMS = "yolov5n yolov8n yolo11n yolov8n-seg yolo11n-pose yolov8n-obb".split()
_YOLO_DYNAMIC = "yolov8n yolo11n yolo11n-seg yolov8n-cls".split()
_CONFIDENCE = 0.25


def _ultralytics() -> dict[str, Export]:
    found = {}
    square = {"images": ((1, 3, 256, 256), "image")}
    for model in _YOLO:
        # RT-DETR takes the 300 best of all places by a score that no output has.
        nearly_tied = Detections(["output0"], "output0:4", ties=6) if "rtdetr" in model else None
        found[f"ultralytics.{model}"] = Export("ultralytics", model, square, detections=nearly_tied)
    for model in _YOLO_NMS:
        found[f"ultralytics.{model}.nms"] = Export(
            "ultralytics",
            model,
            square,
            {"nms": True, "conf": _CONFIDENCE, "max_det": 30},
            detections=Detections(["output0"], "output0:4", _CONFIDENCE),
        )
    for model in _YOLO_DYNAMIC:
        found[f"ultralytics.{model}.dynamic"] = Export(
            "ultralytics", model, {"images": ((2, 3, 192, 256), "image")}, {"dynamic": True}
        )
    found["ultralytics.yolo11n.dynamic.nms"] = Export(
        "ultralytics",
        "yolo11n",
        square,
        {"dynamic": True, "nms": True, "conf": _CONFIDENCE, "max_det": 30},
        detections=Detections(["output0"], "output0:4", _CONFIDENCE),
    )
    return found


# ------------------------------------------------------------------ others


def _smp() -> dict[str, Export]:
    architectures = ("Unet", "UnetPlusPlus", "FPN", "PSPNet", "DeepLabV3Plus", "Linknet", "MAnet",
                     "PAN", "UPerNet", "Segformer")  # fmt: skip
    options = {"encoder_name": "mobilenet_v2", "encoder_weights": None, "classes": 3}
    found = {}
    for place, name in enumerate(architectures):
        # TorchScript has no pooling to a size that does not divide.
        dynamo = place % 2 == 1 or name == "UPerNet"
        found[f"smp.{name.lower()}" + ".dynamo" * dynamo] = Export(
            "segmentation-models-pytorch",
            name,
            _image(128),
            options,
            dynamo=dynamo,
            opset=18 if dynamo else 17,
        )
    return found


_LINE: Inputs = {"line": ((1, 1, 32, 120), "image")}
_LOW: Inputs = {"image": ((1, 3, 40, 56), "image")}
_MODULE_INPUTS: dict[str, Inputs] = {
    "conv_gru": {"clip": ((1, 4, 3, 24, 32), "image"), "state": ((1, 8, 24, 32), "normal")},
    "crnn_lstm": _LINE,
    "crnn_gru": _LINE,
    "streaming_lstm": {
        "x": ((5, 1, 40), "normal"),
        "h": ((2, 1, 32), "normal"),
        "c": ((2, 1, 32), "normal"),
    },
    "super_resolution": {"image": ((1, 1, 40, 56), "image")},
    "diffusion_block": {"x": ((2, 32, 16, 16), "normal"), "step": ((2,), "ids 1 100")},
    "warp_by_flow": {"image": ((1, 3, 40, 56), "image"), "flow": ((1, 2, 40, 56), "normal")},
    "roi_align": {"image": ((1, 3, 40, 56), "image"), "boxes": ((6, 4), "ids 1 18")},
    "roi_align_aligned": {"image": ((1, 3, 40, 56), "image"), "boxes": ((6, 4), "ids 1 18")},
    "nms": {"image": ((1, 3, 96, 128), "image")},
    "einsum_attention": {"x": ((2, 16, 32), "normal")},
    "temporal_conv": {"x": ((1, 40, 60), "normal")},
    "spectrogram": {"wave": ((1, 4000), "audio")},
    "adain": {name: ((1, 3, 40, 56), "image") for name in ("image", "style")},
    "transformer_encoder": {"tokens": ((2, 12), "ids 1 100")},
    "scatter": {"x": ((3, 16), "normal"), "index": ((3, 16), "ids 0 16")},
    "loop": {"x": ((2, 8), "normal"), "turns": ((), "value 3")},
}
_OPEN_IMAGE = {"image": {0: "batch", 2: "height", 3: "width"}}
_MODULES_OPEN: dict[str, tuple[dict[str, dict[int, str]], Inputs]] = {
    name: (_OPEN_IMAGE, {"image": ((1, 3, 44, 60), "image")})
    for name in (
        "pad_reflect",
        "pad_computed_constant",
        "pad_computed_reflect",
        "pad_computed_replicate",
        "pad_same",
        "unet_bilinear",
        "unet_nearest",
        "resize_align_corners",
        "top_keypoints",
        "nms",
    )
} | {
    "super_resolution": (_OPEN_IMAGE, {"image": ((1, 1, 44, 60), "image")}),
    "crnn_lstm": ({"line": {0: "batch", 3: "width"}}, {"line": ((2, 1, 32, 160), "image")}),
    "streaming_lstm": (
        {"x": {0: "frames"}},
        {"x": ((9, 1, 40), "normal"), "h": ((2, 1, 32), "normal"), "c": ((2, 1, 32), "normal")},
    ),
    "roi_align": (
        {"boxes": {0: "boxes"}},
        {"image": ((1, 3, 40, 56), "image"), "boxes": ((9, 4), "ids 1 18")},
    ),
    "spectrogram": ({"wave": {1: "samples"}}, {"wave": ((1, 8000), "audio")}),
}
_BY_TORCHSCRIPT = """
pad_reflect pad_replicate pad_constant pad_circular pad_crop pad_computed_constant
pad_computed_reflect pad_computed_replicate pad_same conv_gru crnn_lstm crnn_gru streaming_lstm
super_resolution diffusion_block unet_bilinear unet_nearest unet_bicubic resize_align_corners
grid_sample_zeros grid_sample_border grid_sample_reflection warp_by_flow roi_align
roi_align_aligned nms einsum_attention temporal_conv spectrogram top_keypoints adain
transformer_encoder focus scatter loop fake_quantized unfold adaptive_pool group_norm_shuffle
normalised
""".split()
_BY_DYNAMO = """
pad_reflect pad_replicate pad_circular pad_computed_reflect conv_gru crnn_lstm diffusion_block
unet_bilinear grid_sample_zeros roi_align nms einsum_attention spectrogram top_keypoints scatter
unfold transformer_encoder
""".split()


def _modules() -> dict[str, Export]:
    found = {}
    for name in _BY_TORCHSCRIPT:
        opset = 20 if name.startswith("grid_sample") else 17  # with AffineGrid
        found[f"torch.{name}"] = Export("torch", name, _MODULE_INPUTS.get(name, _LOW), opset=opset)
    for name in _BY_DYNAMO:
        found[f"torch.{name}.dynamo"] = Export(
            "torch", name, _MODULE_INPUTS.get(name, _LOW), dynamo=True, opset=18
        )
    for name, (dynamic, inputs) in _MODULES_OPEN.items():
        usual = _MODULE_INPUTS.get(name, _LOW)
        traced = {each: shape for each, (shape, _) in usual.items()}
        found[f"torch.{name}.any_size"] = Export(
            "torch", name, inputs, dynamic=dynamic, traced=traced
        )
    return {
        name: Export(**{**vars(export), **_suppressed(name)}) if ".nms" in name else export
        for name, export in found.items()
    }


def _suppressed(name: str) -> dict[str, Any]:
    found = Detections(["boxes", "scores"], "scores")
    return {"outputs": ("boxes", "scores"), "detections": found}


EXPORTS: dict[str, Export] = {
    **_detectors(),
    **_torchvision(),
    **_timm(),
    **_ultralytics(),
    **_smp(),
    **_modules(),
}
"""All exports by their names."""
