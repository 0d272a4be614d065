"""Taps of windows that multiply nothing but zeros: which they are, said for a kernel's schedule.

A dilated window reaches far into the padding: of 3x3 taps at distance 12 an image of 16x16 pixels
has a quarter. In a transposed convolution some phases of the output have fewer taps than others.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import lru_cache

from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = [
    "CHANNELS",
    "LONGEST_TILE",
    "PHASES",
    "REACH",
    "Reach",
    "reaches",
    "read_reaches",
    "useful_share",
]

REACH = "tvm_edge.reach"
"""Annotation of a blocked convolution: what :func:`reaches` says."""

PHASES = "tvm_edge.phases"
"""Annotation of a transposed one: stride, padding and taps along lines, then along columns."""

CHANNELS = "tvm_edge.channels"
"""Annotation of a convolution: channels of the image, where zeros fill its last block up."""

LONGEST_TILE = 7
"""Columns of a register tile that skips taps: so far its windows reach beyond the image."""

# Share of the pairs of a pixel and a tap from which on they are all taken.
_MOST_SKIPPED = 0.9


@dataclass(frozen=True)
class Reach:
    """Place of the windows along an axis of an image.

    Attributes
    ----------
    stride, dilation : int
        Pixels from one window to the next, and from one tap.
    padding : int
        Zeros before the image.
    before, after : int
        Zeros that are stored before and after the image.
    """

    stride: int
    dilation: int
    padding: int
    before: int
    after: int


def read_reaches(text: str) -> tuple[Reach, Reach]:
    """Read the text of :func:`reaches`."""
    numbers = list(map(int, text.split()))
    return Reach(*numbers[:5]), Reach(*numbers[5:])


def reaches(workload: ConvWorkload) -> str:
    """Write the reach of windows along lines and columns; nothing where no tap is to be skipped.

    Lines have no padding: a tile has one of them, of which a tap has all or nothing. Columns have
    as much as a tile reads that has a single pixel in the image.
    """
    if max(workload.dilation) == 1 or workload.depthwise:
        return ""
    top, left, _, right = workload.padding
    most = (LONGEST_TILE - 1) * workload.strides[1]
    lines = Reach(workload.strides[0], workload.dilation[0], top, 0, 0)
    columns = Reach(
        workload.strides[1], workload.dilation[1], left, min(left, most), min(right, most)
    )
    share = 1.0
    sizes = (workload.height, workload.width)
    for length, taps, reach, size in zip(
        workload.output, workload.kernel, (lines, columns), sizes, strict=True
    ):
        share *= useful_share(length, 1, taps, reach, size)
    if share > _MOST_SKIPPED:
        return ""
    return " ".join(str(number) for axis in (lines, columns) for number in astuple(axis))


@lru_cache(maxsize=4096)
def useful_share(length: int, tile: int, taps: int, reach: Reach, image: int) -> float:
    """Return the share of pairs of a tile and a tap that are not all padding.

    Parameters
    ----------
    length, tile : int
        Outputs along the axis, and of a tile.
    taps : int
        Of the window.
    reach : Reach
    image : int
        Pixels along the axis.
    """
    firsts = range(0, length, tile)
    useful = 0
    for tap in range(taps):
        begin = tap * reach.dilation - reach.padding
        for first in firsts:
            last = min(first + tile, length) - 1
            useful += last * reach.stride + begin >= 0 and first * reach.stride + begin < image
    return useful / (len(firsts) * taps)
