"""Workloads of the vision benchmarks: sorts, scans and detection.

Sizes are those of detection and classification networks: 8,732 boxes are SSD300's and 80 classes
COCO's; 242,991 and 159,882 are the anchors of Faster R-CNN with a feature pyramid, three at each
place of five levels, for pictures of 800×1216 and 800×800; 91 and 1,000 are classes. Data is
float32 from a generator that is seeded by the workload's name; every second workload's is rounded,
which makes equal elements. Workloads of detection are in :mod:`benchmarks.vision.boxes`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from benchmarks.common.options import Parser
from benchmarks.vision.boxes import DETECTIONS, Suppression
from benchmarks.vision.detection_reference import expected_outputs

__all__ = [
    "WORKLOADS",
    "Workload",
    "find_workload",
    "sweep_workloads",
]

SUM_TOLERANCE = 1e-6
"""Error allowed of a prefix sum in float32, as a part of the sum of its magnitudes."""

_DIGITS = 4
_STEPS = 64  # of one, in data of exact sums


@dataclass(frozen=True)
class Workload:
    """One operator on one tensor.

    Attributes
    ----------
    operator : {"argsort", "segmented_argsort", "top_k", "cumsum"}
        Sorts are stable and ascending, a top-k is of the largest, first index first.
    shape : tuple[int, ...]
        Of the data; of a segmented argsort the number of segments, which decides the data's length.
    axis : int
    k : int
        Of a top-k.
    lengths : {"", "geometric", "uniform", "one", "single", "equal"}
        How the lengths of segments are drawn: mean 100 geometric; uniform from 0 to 200; one
        segment of 1M; 1M of length 1 among 100,000 empty ones; 2**20 elements shared out equally.
    rounded : bool
        Whether there are many equal elements. In a cumsum whether elements are multiples of 1/64,
        so that all partial sums are exact in float32 and results are compared exactly.
    """

    operator: str
    shape: tuple[int, ...]
    axis: int = -1
    k: int = 0
    lengths: str = ""
    rounded: bool = False

    @property
    def name(self) -> str:
        """For tables and command lines."""
        if self.operator == "segmented_argsort":
            return f"segmented_argsort {self.lengths} {self.shape[0]}"
        parts = [self.operator, "×".join(map(str, self.shape))]
        if self.operator == "top_k":
            parts.append(f"k={self.k}")
        if self.axis != -1:
            parts.append(f"axis={self.axis}")
        return " ".join(parts)

    @property
    def elements(self) -> int:
        """Elements of the data."""
        return int(self.offsets[-1]) if self.lengths else prod(self.shape)

    @cached_property
    def offsets(self) -> np.ndarray:
        """Begins of the segments, and the end: int32, ``(segments + 1,)``."""
        count = self.shape[0]
        generator = self._generator("offsets")
        if self.lengths == "geometric":
            lengths = generator.geometric(1 / 100, count)
        elif self.lengths == "uniform":
            lengths = generator.integers(0, 201, count)
        elif self.lengths == "one":
            lengths = np.array([1_000_000])
        elif self.lengths == "single":
            lengths = generator.permutation(np.arange(count) >= count - 1_000_000)
        elif self.lengths == "equal":
            lengths = np.full(count, 2**20 // count)
        else:
            raise ValueError(f"{self.name} has no segments")
        return np.concatenate([[0], np.cumsum(lengths)]).astype("int32")

    @cached_property
    def data(self) -> np.ndarray:
        """Float32, without NaN."""
        shape: Sequence[int] = [self.elements] if self.lengths else self.shape
        drawn = self._generator("data").standard_normal(shape, dtype=np.float32)
        if not self.rounded:
            return drawn
        if self.operator == "cumsum":
            return np.round(drawn * _STEPS) / np.float32(_STEPS)
        return np.round(drawn, _DIGITS)

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """Arrays by the names of the models' inputs."""
        return {"data": self.data, **({"offsets": self.offsets} if self.lengths else {})}

    @property
    def segment_of(self) -> np.ndarray:
        """The segment of each element."""
        return np.repeat(np.arange(self.shape[0], dtype="int32"), np.diff(self.offsets))

    def check(
        self, indices: np.ndarray | None = None, values: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Compare a result with NumPy's stable argsort, or its cumsum in float64.

        Parameters
        ----------
        indices, values : np.ndarray, optional
            Flat or shaped. What is left out is not compared.

        Returns
        -------
        dict
            ``right``, and ``error``: wrong elements, or of sums the largest difference.
        """
        expected = self.numpy(np.float64 if self.operator == "cumsum" else np.float32)
        if self.operator == "cumsum":
            assert values is not None
            difference = np.abs(values.reshape(self.shape) - expected)
            magnitudes = np.cumsum(np.abs(self.data), axis=self.axis, dtype=np.float64)
            allowed = 0 if self.rounded else SUM_TOLERANCE * magnitudes
            return {
                "right": bool((difference <= allowed).all()),  # NaN is not
                "error": float(difference.max()),
            }
        wrong = 0
        if indices is not None:
            wrong += int((indices.reshape(expected.shape) != expected).sum())
        if values is not None:
            taken = np.take_along_axis(self.data, expected, -1)
            wrong += int((values.reshape(expected.shape) != taken).sum())
        return {"right": wrong == 0, "error": float(wrong)}

    def numpy(self, dtype: Any = np.float32) -> np.ndarray:
        """NumPy's result: indices of a sort, sums of a cumsum."""
        if self.operator == "cumsum":
            return np.cumsum(self.data, axis=self.axis, dtype=dtype)
        if self.lengths:
            return np.lexsort((self.data, self.segment_of))
        if self.operator == "top_k":
            order = np.argsort(-self.data, axis=self.axis, kind="stable")
            return order[..., : self.k]
        return np.argsort(self.data, axis=self.axis, kind="stable")

    def _generator(self, what: str) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(f"{self.name} {what}".encode()))


def _listed() -> tuple[Workload, ...]:
    argsorts = [(1, 8732), (80, 8732), (1, 1_000_000), (1000, 100)]
    ragged = [("geometric", 10_000), ("uniform", 10_000), ("one", 1), ("single", 1_100_000)]
    top_ks = [
        ((1, 1000), 5),
        ((1, 8732), 100),
        ((80, 8732), 100),
        ((1, 8732), 400),
        ((1, 242_991), 1000),
        ((1, 159_882), 1000),
        ((8, 1000), 1000),
        ((1000, 91), 1),
        ((4, 20_000), 300),
    ]
    sums = [((1, 8732), -1), ((1, 1_000_000), -1), ((80, 8732), -1), ((16_777_216,), -1)]
    sums.append(((64, 1000, 32), 1))

    def odd(number: int) -> bool:
        return number % 2 == 1

    return (
        *(Workload("argsort", shape, rounded=odd(i)) for i, shape in enumerate(argsorts)),
        *(
            Workload("segmented_argsort", (count,), lengths=lengths, rounded=odd(i))
            for i, (lengths, count) in enumerate(ragged)
        ),
        *(Workload("top_k", shape, k=k, rounded=odd(i)) for i, (shape, k) in enumerate(top_ks)),
        *(Workload("cumsum", shape, axis, rounded=odd(i)) for i, (shape, axis) in enumerate(sums)),
    )


WORKLOADS = _listed()
"""Workloads of :mod:`benchmarks.vision.sorting`."""

_LENGTH_SWEEPS = tuple(
    Workload(operator, (1, 2**exponent), rounded=True)
    for operator in ("argsort", "cumsum")
    for exponent in range(8, 25, 2)
)
"""Cost against length."""

_SEGMENT_SWEEP = tuple(
    Workload("segmented_argsort", (2**exponent,), lengths="equal", rounded=True)
    for exponent in range(0, 21, 4)
)
"""Cost against the number of segments, 2**20 elements in all."""


def sweep_workloads(longest: int) -> tuple[Workload, ...]:
    """Both sweeps, with rows of at most `longest` elements."""
    return (*(w for w in _LENGTH_SWEEPS if w.shape[-1] <= longest), *_SEGMENT_SWEEP)


def find_workload(name: str) -> Workload:
    """Find a workload by its name.

    Raises
    ------
    KeyError
    """
    return {w.name: w for w in (*WORKLOADS, *_LENGTH_SWEEPS, *_SEGMENT_SWEEP)}[name]


def main(arguments: Sequence[str]) -> None:
    """Print all of them, with what makes them hard."""
    Parser("vision_workloads", __doc__).parse_args(arguments)
    print("| workload | elements | equal to another one in its row or segment |")
    print("|---|---|---|")
    for workload in WORKLOADS:
        print(f"| {workload.name} | {workload.elements:,} | {_ties(workload):.1%} |")
    print("\n| detection | inputs | above the score threshold | result |")
    print("|---|---|---|---|")
    for detection in DETECTIONS:
        shapes = " ".join("×".join(map(str, a.shape)) for a in detection.inputs.values())
        above = "–"
        if isinstance(detection, Suppression):
            least = -np.inf if detection.score is None else detection.score
            above = f"{(detection.inputs['scores'] > least).sum():,}"
        results = expected_outputs(detection).values()
        made = " ".join("×".join(map(str, result.shape)) for result in results)
        print(f"| {detection.name} | {shapes} | {above} | {made} |")


def _ties(workload: Workload) -> float:
    """The part of neighbours in order that are equal."""
    if workload.operator == "cumsum":
        return 0.0
    if workload.lengths:
        found = workload.numpy()
        ordered, segment = workload.data[found], workload.segment_of
        equal = (ordered[1:] == ordered[:-1]) & (segment[1:] == segment[:-1])
        return float(equal.mean()) if equal.size else 0.0
    ordered = np.sort(workload.data, axis=-1)
    return float((ordered[..., 1:] == ordered[..., :-1]).mean())
