"""Catalogue of the zoo: one entry per network, readable without onnx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm_edge.errors import InputError, near_matches
from tvm_edge.zoo.quantized import float32_name, quantized_names

__all__ = ["ZooEntry", "entry", "names", "trained_names"]


@dataclass(frozen=True)
class ZooEntry:
    """A network of the zoo and its published figures at the default size.

    Attributes
    ----------
    name : str
        Argument of :func:`tvm_edge.zoo.build`.
    family : str
        The module under ``tvm_edge.zoo.networks`` with the function ``name``.
    task : {"classification", "detection", "segmentation"}
    image_size : tuple[int, int]
        Default height and width, in pixels.
    min_image_size : int
        The smallest height or width the topology admits, in pixels.
    parameters : int
        Published count of trained parameters: weights, biases, and gamma and beta of batch
        normalisation, without its running mean and variance.
    multiply_adds : int
        Published multiply-adds of convolutions and fully connected layers for one picture.
    source : str
        The paper, and where the two counts were published.
    """

    name: str
    family: str
    task: Literal["classification", "detection", "segmentation"]
    image_size: tuple[int, int]
    min_image_size: int
    parameters: int
    multiply_adds: int
    source: str

    @property
    def flops(self) -> int:
        """Floating-point operations for one picture: two per multiply-add."""
        return 2 * self.multiply_adds


_ENTRIES = {
    e.name: e
    for e in (
        ZooEntry(
            name="deeplab_v3",
            family="deeplab",
            task="segmentation",
            image_size=(257, 257),
            min_image_size=32,
            parameters=2_110_000,
            multiply_adds=723_000_000,
            source="Sandler et al., MobileNetV2, CVPR 2018, table 7, MNet V2* with output stride "
            "16 and without ASPP (2.11 million parameters; 2.75 billion multiply-adds at 513x513, "
            "here times 0.263, by the sizes of the feature maps)",
        ),
        ZooEntry(
            name="densenet121",
            family="densenet",
            task="classification",
            image_size=(224, 224),
            min_image_size=32,
            parameters=7_978_856,
            multiply_adds=2_834_000_000,
            source="Huang et al., Densely Connected Convolutional Networks, CVPR 2017, table 1; "
            "both counts as in torchvision's densenet121",
        ),
        ZooEntry(
            name="faster_rcnn_head",
            family="faster_rcnn",
            task="detection",
            image_size=(512, 512),
            min_image_size=33,
            parameters=23_714_046,
            multiply_adds=18_630_000_000,
            source="Ren et al., Faster R-CNN, NeurIPS 2015; He et al., Mask R-CNN, ICCV 2017 "
            "(RoiAlign); Lin et al., Feature Pyramid Networks, CVPR 2017 (head); both counts by "
            "hand: ResNet-50's published 25,557,032 parameters less 14,964,736 of conv5 and "
            "2,049,000 of the classifier, and its 3.858 billion multiply-adds less 732 million of "
            "conv5 and 2 million of the classifier, times (512/224)^2; 864,045 and 884 million of "
            "the proposal network, 14,306,705 and 1,430 million of the head for 100 proposals from "
            "their shapes",
        ),
        ZooEntry(
            name="googlenet",
            family="inception",
            task="classification",
            image_size=(224, 224),
            min_image_size=32,
            parameters=6_624_904,
            multiply_adds=1_498_000_000,
            source="Szegedy et al., Going Deeper with Convolutions, CVPR 2015, table 1 (1.5 "
            "billion); both counts as in torchvision's googlenet",
        ),
        ZooEntry(
            name="inception_v3",
            family="inception",
            task="classification",
            image_size=(299, 299),
            min_image_size=75,
            parameters=23_834_568,
            multiply_adds=5_713_000_000,
            source="Szegedy et al., Rethinking the Inception Architecture, CVPR 2016, table 1; "
            "parameters as in timm's inception_v3 (torchvision's 27,161,264 less the auxiliary "
            "classifier's 3,326,696), multiply-adds as in torchvision's",
        ),
        ZooEntry(
            name="mobilenet_v1",
            family="mobilenet",
            task="classification",
            image_size=(224, 224),
            min_image_size=32,
            parameters=4_231_976,
            multiply_adds=569_000_000,
            source="Howard et al., MobileNets, arXiv:1704.04861, table 4 (569 million "
            "multiply-adds, 4.2 million parameters); parameters as the trainable ones of Keras's "
            "MobileNet",
        ),
        ZooEntry(
            name="mobilenet_v2",
            family="mobilenet",
            task="classification",
            image_size=(224, 224),
            min_image_size=32,
            parameters=3_504_872,
            multiply_adds=300_000_000,
            source="Sandler et al., MobileNetV2, CVPR 2018, tables 2 and 4 (multiply-adds); "
            "parameters as in torchvision's mobilenet_v2",
        ),
        ZooEntry(
            name="nasnet_mobile",
            family="nasnet",
            task="classification",
            image_size=(224, 224),
            min_image_size=32,
            parameters=5_289_978,
            multiply_adds=564_000_000,
            source="Zoph et al., Learning Transferable Architectures for Scalable Image "
            "Recognition, CVPR 2018, table 3, NASNet-A (4 @ 1056) (564 million multiply-adds, 5.3 "
            "million parameters); parameters as the trainable ones of Keras's NASNetMobile",
        ),
        ZooEntry(
            name="resnet50_v1",
            family="resnet",
            task="classification",
            image_size=(224, 224),
            min_image_size=32,
            parameters=25_557_032,
            multiply_adds=3_800_000_000,
            source="He et al., Deep Residual Learning, CVPR 2016, table 1 (multiply-adds); "
            "parameters as in torchvision's resnet50",
        ),
        ZooEntry(
            name="resnet50_v2",
            family="resnet",
            task="classification",
            image_size=(224, 224),
            min_image_size=32,
            parameters=25_549_480,
            multiply_adds=4_100_000_000,
            source="He et al., Identity Mappings in Deep Residual Networks, ECCV 2016; parameters "
            "as in MXNet Gluon's resnet50_v2 (25,595,060 with what is not trained); multiply-adds "
            "as in timm's resnetv2_50",
        ),
        ZooEntry(
            name="shufflenet_v2",
            family="shufflenet",
            task="classification",
            image_size=(224, 224),
            min_image_size=32,
            parameters=2_278_604,
            multiply_adds=145_000_000,
            source="Ma et al., ShuffleNet V2, ECCV 2018, table 5 (1x; 146 million multiply-adds, "
            "2.3 million parameters); both counts as in torchvision's shufflenet_v2_x1_0",
        ),
        ZooEntry(
            name="squeezenet1_0",
            family="squeezenet",
            task="classification",
            image_size=(224, 224),
            min_image_size=32,
            parameters=1_248_424,
            multiply_adds=820_000_000,
            source="Iandola et al., SqueezeNet, arXiv:1602.07360, table 1; both counts as in "
            "torchvision's squeezenet1_0",
        ),
        ZooEntry(
            name="ssd_mobilenet_v1",
            family="ssd",
            task="detection",
            image_size=(300, 300),
            min_image_size=33,
            parameters=6_807_000,
            multiply_adds=1_247_000_000,
            source="Howard et al., MobileNets, arXiv:1704.04861, table 13 (6.8 million, 1.2 "
            "billion); TensorFlow object detection API, ssd_mobilenet_v1_coco; both counts as in "
            "Open Model Zoo, whose parameters are those of folded batch normalisations",
        ),
        ZooEntry(
            name="ssd_mobilenet_v1_512",
            family="ssd",
            task="detection",
            image_size=(512, 512),
            min_image_size=33,
            parameters=6_807_000,
            multiply_adds=3_440_000_000,
            source="as ssd_mobilenet_v1, whose parameters it has; multiply-adds by hand: 568 "
            "million of MobileNetV1's convolutions at 224x224 times (512/224)^2, 153 million of "
            "the added layers and 321 million of the predictors from their shapes",
        ),
        ZooEntry(
            name="ssd_resnet50_v1",
            family="ssd",
            task="detection",
            image_size=(512, 512),
            min_image_size=33,
            parameters=36_450_094,
            multiply_adds=22_330_000_000,
            source="Liu et al., SSD, ECCV 2016; GluonCV's ssd_512_resnet50_v1_voc (Wang et al., "
            "ICPP 2019, table 1); both counts by hand: ResNet-50's published 25,557,032 parameters "
            "less the classifier's 2,049,000, and its 3.858 billion multiply-adds less the "
            "classifier's times (512/224)^2; 7,411,712 and 479 million of the added layers, "
            "5,530,350 and 1,708 million of the predictors from their shapes",
        ),
        ZooEntry(
            name="vgg16",
            family="vgg",
            task="classification",
            image_size=(224, 224),
            min_image_size=32,
            parameters=138_357_544,
            multiply_adds=15_470_000_000,
            source="Simonyan and Zisserman, Very Deep Convolutional Networks, ICLR 2015, table 1, "
            "D; both counts as in torchvision's vgg16",
        ),
        ZooEntry(
            name="vgg19",
            family="vgg",
            task="classification",
            image_size=(224, 224),
            min_image_size=32,
            parameters=143_667_240,
            multiply_adds=19_632_000_000,
            source="Simonyan and Zisserman, Very Deep Convolutional Networks, ICLR 2015, table 1, "
            "E; both counts as in torchvision's vgg19",
        ),
        ZooEntry(
            name="yolov3",
            family="yolo",
            task="detection",
            image_size=(416, 416),
            min_image_size=32,
            parameters=61_949_149,
            multiply_adds=32_930_000_000,
            source="Redmon and Farhadi, YOLOv3, arXiv:1804.02767; parameters as the trainable ones "
            "of the usual conversions of yolov3.weights (61,949,149), multiply-adds half of the "
            "65.86 billion operations that Darknet publishes for 416x416",
        ),
        ZooEntry(
            name="yolov1",
            family="yolov1",
            task="detection",
            image_size=(448, 448),
            min_image_size=64,
            parameters=271_703_550,
            multiply_adds=20_285_153_280,
            source="Redmon et al., You Only Look Once, CVPR 2016, figure 3; both counts by hand "
            "from it",
        ),
        ZooEntry(
            name="yolov1_large",
            family="yolov1",
            task="detection",
            image_size=(448, 448),
            min_image_size=64,
            parameters=314_002_443,
            multiply_adds=20_327_451_354,
            source="Rallapalli et al., Are Very Deep Neural Networks Feasible on Mobile Devices?:  "
            "YOLO with a first fully "
            "connected layer larger by 20 % (section 4); both counts by hand",
        ),
        ZooEntry(
            name="yolov1_medium",
            family="yolov1",
            task="detection",
            image_size=(448, 448),
            min_image_size=64,
            parameters=109_831_166,
            multiply_adds=19_896_791_040,
            source="Rallapalli et al., Are Very Deep Neural Networks Feasible on Mobile Devices?:  "
            "YOLO with 512 filters "
            "in the last convolution and 2048 after it (section 3); both counts by hand",
        ),
        ZooEntry(
            name="yolov1_small",
            family="yolov1",
            task="detection",
            image_size=(448, 448),
            min_image_size=64,
            parameters=67_430_142,
            multiply_adds=19_741_145_088,
            source="Rallapalli et al., Are Very Deep Neural Networks Feasible on Mobile Devices?:  "
            "YOLO with 256 filters "
            "in the last convolution and 1024 after it (section 3); both counts by hand",
        ),
    )
}


_TRAINED = ("shapes_ssd",)


def names() -> tuple[str, ...]:
    """Return the names of the published networks, whose weights are random, sorted."""
    return tuple(sorted(_ENTRIES))


def trained_names() -> tuple[str, ...]:
    """Return the names of the networks with trained weights, sorted."""
    return _TRAINED


def entry(name: str) -> ZooEntry:
    """Return the entry called `name`; of a network in int8 that of the network in float32.

    Raises
    ------
    tvm_edge.errors.InputError
        If the zoo has no such network; the message names the nearest ones.
    """
    try:
        return _ENTRIES[float32_name(name)]
    except (KeyError, TypeError):
        raise InputError(
            f"the zoo has no network {name!r}; {near_matches(str(name), _known())}",
            name="name",
            expected=", ".join(_known()),
            got=repr(name),
        ) from None


def _known() -> tuple[str, ...]:
    """All names that :func:`tvm_edge.zoo.build` takes, sorted."""
    return tuple(sorted((*_ENTRIES, *_TRAINED, *quantized_names())))
