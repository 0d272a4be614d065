"""What the zoo holds: one entry per network, readable without onnx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm_edge.errors import InputError, near_matches

__all__ = ["ZooEntry", "entry", "names"]


@dataclass(frozen=True)
class ZooEntry:
    """A network of the zoo and its published figures at the default size.

    Attributes
    ----------
    name : str
        What :func:`tvm_edge.zoo.build` takes.
    family : str
        The module under ``tvm_edge.zoo.networks`` with the function ``name``.
    task : {"classification", "detection"}
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
    task: Literal["classification", "detection"]
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
    )
}


def names() -> tuple[str, ...]:
    """Return the names :func:`tvm_edge.zoo.build` takes, sorted."""
    return tuple(sorted(_ENTRIES))


def entry(name: str) -> ZooEntry:
    """Return the entry called `name`.

    Raises
    ------
    tvm_edge.errors.InputError
        If the zoo has no such network; the message names the nearest ones.
    """
    try:
        return _ENTRIES[name]
    except (KeyError, TypeError):
        raise InputError(
            f"the zoo has no network {name!r}; {near_matches(str(name), names())}",
            name="name",
            expected=", ".join(names()),
            got=repr(name),
        ) from None
