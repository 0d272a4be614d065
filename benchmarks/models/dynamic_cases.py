"""Models with open dimensions, and the shapes that each is measured at.

The first shape of a case is the typical one, which the ranges name. Others are far from it, or odd:
primes, or prime multiples where the network halves its input five times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["CASES", "DynamicCase"]


@dataclass(frozen=True)
class DynamicCase:
    """A model and the shapes that one artifact of it runs.

    Attributes
    ----------
    source : str
        Where the file is from: ``pypi NAME`` of :mod:`benchmarks.models.model_zoo_pypi`,
        ``export NAME`` of :data:`~benchmarks.models.export_cases.EXPORTS`, ``zoo NAME`` with its
        input made open, or ``crnn``.
    input : str
        The name of its only input.
    dims : sequence of int or str
        Of the input: lengths, and open dimensions in the form of :attr:`tvm_edge.Dim.text`.
    values : str
        As of :func:`~benchmarks.models.made_inputs.make_input`.
    lengths : sequence of sequence of int
        Of the open dimensions, in their order: an entry a shape.
    """

    source: str
    input: str
    dims: Sequence[int | str]
    values: str
    lengths: Sequence[Sequence[int]]

    def shape(self, number: int) -> tuple[int, ...]:
        """The whole shape of the input, by its number."""
        lengths = iter(self.lengths[number])
        return tuple(dim if isinstance(dim, int) else next(lengths) for dim in self.dims)

    def label(self, number: int) -> str:
        """The shape for a table: ``2x3x48x320``."""
        return "x".join(map(str, self.shape(number)))


_PICTURES = ("n=1..16@1", 3, "h=32..1024@224", "w=32..1024@224")
_PICTURE_LENGTHS = (
    (1, 224, 224),
    (4, 224, 224),
    (1, 193, 257),
    (3, 160, 128),
    (1, 97, 101),
    (1, 384, 512),
    (7, 67, 83),
    (2, 331, 149),
)

CASES: Mapping[str, DynamicCase] = {
    "ppocr_v4_det": DynamicCase(
        "pypi rapidocr-onnxruntime.ch_PP-OCRv4_det_infer",
        "x",
        ("n=1..8@1", 3, "h=32..2048/32@480", "w=32..2048/32@640"),
        "page",
        (
            (1, 480, 640),
            (1, 640, 480),
            (1, 736, 1120),
            (2, 320, 320),
            (1, 224, 416),
            (1, 96, 1504),
            (3, 160, 352),
            (1, 992, 544),
        ),
    ),
    "ppocr_v4_rec": DynamicCase(
        "pypi rapidocr-onnxruntime.ch_PP-OCRv4_rec_infer",
        "x",
        ("n=1..32@1", 3, 48, "w=32..2048@320"),
        "page",
        ((1, 320), (6, 320), (1, 640), (2, 131), (1, 67), (13, 192), (1, 1531), (5, 443)),
    ),
    "yolov8n": DynamicCase(
        "export ultralytics.yolov8n.dynamic",
        "images",
        ("n=1..16@1", 3, "h=32..1280/32@320", "w=32..1280/32@320"),
        "image",
        (
            (1, 320, 320),
            (1, 640, 640),
            (4, 320, 320),
            (1, 224, 416),
            (1, 736, 352),
            (3, 160, 96),
            (1, 544, 928),
            (2, 416, 608),
        ),
    ),
    "resnet50_v1": DynamicCase("zoo resnet50_v1", "data", _PICTURES, "normal", _PICTURE_LENGTHS),
    "mobilenet_v2": DynamicCase("zoo mobilenet_v2", "data", _PICTURES, "normal", _PICTURE_LENGTHS),
    "lstm_ocr": DynamicCase(
        "crnn",
        "line",
        ("n=1..32@1", 1, 32, "w=16..2048@256"),
        "page",
        ((1, 256), (4, 256), (1, 512), (1, 100), (2, 131), (1, 37), (7, 223), (1, 1021)),
    ),
}
"""All cases by their names."""
