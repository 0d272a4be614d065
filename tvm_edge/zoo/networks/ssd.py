"""Single-shot detectors: Liu et al., SSD, ECCV 2016."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm_edge.zoo.anchors import Shapes, gluon_shapes, ssd_anchors, ssd_shapes
from tvm_edge.zoo.calibration import Scale
from tvm_edge.zoo.detection import (
    ENCODINGS,
    Led,
    Suppression,
    decode,
    predict,
    probabilities,
    select,
)
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import conv_bn
from tvm_edge.zoo.networks.mobilenet import TENSORFLOW_STYLE, mobilenet_v1_features
from tvm_edge.zoo.networks.resnet import resnet50_v1_features

__all__ = ["ssd_mobilenet_v1", "ssd_mobilenet_v1_512", "ssd_resnet50_v1"]

_COCO_CLASSES = 90  # of COCO's label map
_VOC_CLASSES = 20
# About 1 in 1000 scores passes the threshold, most of them in a third of the classes.
_SIGMOID_LOGITS = Scale(deviation=1.3, mean=-6.0, spread=1.5)
# To be a softmax's winner a class has to beat the background, which is always strong.
_BACKGROUND = Scale(deviation=1.0, mean=6.8, spread=0.0)
_SOFTMAX_LOGITS = Led(deviation=1.8, mean=0.0, spread=1.0, lead=(_BACKGROUND,))


def ssd_mobilenet_v1(g: Graph) -> None:
    """SSD300 on MobileNetV1, as ``ssd_mobilenet_v1_coco`` of TensorFlow's object detection API.

    For P anchors (1917 at 300x300) the outputs are

    - ``boxes`` ``[N, P, 4]``: y1, x1, y2, x2 as fractions of the picture, not clipped to it;
    - ``scores`` ``[N, 90, P]``: sigmoid, without the background;
    - ``selected`` int64 ``[M, 3]``: picture, class and box that NonMaxSuppression keeps;
    - ``detection_boxes`` ``[M, 4]``, ``detection_scores`` ``[M]`` and ``detection_classes`` int64
      ``[M]`` (1 to 90, as in COCO): what ``selected`` points to.

    The score threshold is 0.5. The API's training configuration keeps every score above 1e-8,
    which no deployment does; its cut to the 100 best over all classes is left out.
    """
    maps = _mobilenet_maps(g)
    shapes = ssd_shapes(len(maps))
    encodings, logits = _heads(maps, shapes, _COCO_CLASSES, kernel=1, scale=_SIGMOID_LOGITS)
    with g.scope("postprocess"):
        anchors = ssd_anchors([x.spatial for x in maps], g.data.spatial, shapes)
        boxes = decode(_all(encodings, "encodings"), anchors)
        scores = probabilities(_all(logits, "logits"), _COCO_CLASSES)
        how = Suppression(iou=0.6, score=0.5)
        select(boxes, scores, how, candidates=len(anchors), classes=_COCO_CLASSES)


def ssd_mobilenet_v1_512(g: Graph) -> None:
    """:func:`ssd_mobilenet_v1` for 512x512 pictures, with 5118 anchors."""
    ssd_mobilenet_v1(g)


def ssd_resnet50_v1(g: Graph) -> None:
    """SSD512 on ResNet-50, as ``ssd_512_resnet50_v1_voc`` of GluonCV.

    The features of ResNet-50's stages 3 and 4 and of four pairs of convolutions after them, 3x3
    predictors, 6132 anchors at 512x512. The outputs are those of :func:`ssd_mobilenet_v1`, for the
    20 classes of VOC: ``scores`` ``[N, 20, P]`` is a softmax, without the background, and
    ``detection_classes`` counts from 0, as in GluonCV.

    The score threshold is 0.5; GluonCV keeps scores above 0.01 and draws those above 0.5. Its cuts
    to 400 candidates and 100 detections over all classes are left out, and so are the biases that
    its ResNet has before batch normalisations.
    """
    maps = _resnet_maps(g)
    shapes = gluon_shapes()
    encodings, logits = _heads(maps, shapes, _VOC_CLASSES, kernel=3, scale=_SOFTMAX_LOGITS)
    with g.scope("postprocess"):
        anchors = ssd_anchors([x.spatial for x in maps], g.data.spatial, shapes)
        boxes = decode(_all(encodings, "encodings"), anchors)
        scores = probabilities(_all(logits, "logits"), _VOC_CLASSES, activation="Softmax")
        how = Suppression(iou=0.45, score=0.5)
        select(boxes, scores, how, candidates=len(anchors), classes=_VOC_CLASSES, first_class=0)


def _mobilenet_maps(g: Graph) -> list[Tensor]:
    """Add the six maps that anchors lie on: two of the backbone, four of stride 2 on top of it."""
    backbone = mobilenet_v1_features(g)
    x = backbone[13]
    maps = [backbone[11], x]
    for index, channels in enumerate((512, 256, 256, 128)):
        with g.scope(f"extra{index}"):
            x = conv_bn(x, g.channels(channels // 2), 1, name="reduce", **TENSORFLOW_STYLE)
            x = conv_bn(x, g.channels(channels), 3, name="conv", stride=2, **TENSORFLOW_STYLE)
        maps.append(x)
    return maps


def _resnet_maps(g: Graph) -> list[Tensor]:
    """Add the maps that anchors lie on to ResNet-50, as GluonCV's ``FeatureExpander`` does."""
    with g.scope("backbone"):
        backbone = resnet50_v1_features(g)
    x = backbone[4]
    maps = [backbone[3], x]
    for index, channels in enumerate((512, 512, 256, 256)):
        outer = g.channels(channels)
        with g.scope(f"extra{index}"):
            x = conv_bn(x, outer, 1, name="transition", activation="relu")
            x = conv_bn(x, outer, 3, name="conv", stride=2, pads=1, activation="relu")
        maps.append(x)
    return maps


def _heads(
    maps: Sequence[Tensor], shapes: Sequence[Shapes], classes: int, *, kernel: int, scale: Scale
) -> tuple[list[Tensor], list[Tensor]]:
    """Encodings and, with the background, logits of every map's anchors."""
    encodings, logits = [], []
    for index, (x, of_cell) in enumerate(zip(maps, shapes, strict=True)):
        anchors = len(of_cell)
        with x.graph.scope(f"head{index}"):
            box = predict(x, anchors, 4, name="box", scale=ENCODINGS, kernel=kernel)
            blocks = replace(scale, blocks=anchors)
            label = predict(x, anchors, classes + 1, name="class", scale=blocks, kernel=kernel)
        encodings.append(box)
        logits.append(label)
    return encodings, logits


def _all(parts: Sequence[Tensor], name: str) -> Tensor:
    """Put the anchors of all maps together; nothing after this is calibrated."""
    return parts[0].graph.op("Concat", *parts, name=name, axis=1).detach()
