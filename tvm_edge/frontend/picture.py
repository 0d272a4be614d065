"""Pictures as a camera or a file gives them, and what a network wants of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm_edge.errors import InputError

__all__ = ["Picture", "Placing"]

_LAYOUTS = ("NHWC", "NCHW")
_DTYPES = ("uint8", "float32")
_RESIZES = ("bilinear", "letterbox")
_SWAPS = ("BGR→RGB", "RGB→BGR")
_COLORS = ("RGB", "BGR", "GRAY", *_SWAPS)


@dataclass(frozen=True)
class Placing:
    """Place of a picture in the input of a network.

    Attributes
    ----------
    height, width : int
        Of the picture after it was resized.
    top, left : int
        Where it begins, in pixels of the input; negative where it is cut.
    scale_y, scale_x : float
        Pixels of the input for one of the picture.
    """

    height: int
    width: int
    top: int
    left: int
    scale_y: float
    scale_x: float


@dataclass(frozen=True)
class Picture:
    """An input of a model that is a picture, and what is done to it before the first layer.

    In this order: the picture is resized, padded or cut, its channels are swapped, `mean` is
    subtracted, and it is divided by `std`.

    Parameters
    ----------
    layout : {"NHWC", "NCHW"}
        Layout of the picture; the network's own is read from the model.
    dtype : {"uint8", "float32"}
    size : (int, int), optional
        Height and width of the picture. Default: the network's, and nothing is resized.
    color : str
        ``"RGB"``, ``"BGR"``, ``"GRAY"``: as the network wants it; ``"BGR→RGB"`` or ``"RGB→BGR"``
        (``->`` is taken for the arrow) swaps the channels.
    resize : {"bilinear", "letterbox"}, optional
        ``"letterbox"`` keeps the ratio of height and width and fills the rest, centred, with
        `fill`. Without it the size must be the network's.
    antialias : bool
        Whether a smaller picture is averaged from all pixels, as PIL and torchvision do by default,
        and not interpolated between four, as OpenCV's ``INTER_LINEAR`` does.
    crop : int or (int, int), optional
        Resize the shorter side to so many pixels, or both to these, and cut the network's size out
        of the centre, as torchvision's ``Resize`` and ``CenterCrop`` do.
    fill : float
        Value that letterbox fills with, before `mean`.
    mean, std : float or sequence of float, optional
        In the picture's units (0 to 255 of uint8), for each channel in the network's order.
    """

    layout: str = "NHWC"
    dtype: str = "uint8"
    size: tuple[int, int] | None = None
    color: str = "RGB"
    resize: str | None = None
    antialias: bool = False
    crop: int | tuple[int, int] | None = None
    fill: float = 114.0
    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "color", str(self.color).replace("->", "→"))
        for name, known in (
            ("layout", _LAYOUTS),
            ("dtype", _DTYPES),
            ("color", _COLORS),
            ("resize", (None, *_RESIZES)),
        ):
            if getattr(self, name) not in known:
                shown = ", ".join(str(each) for each in known)
                raise _refused(name, getattr(self, name), f"use one of {shown}")
        if self.size is not None:
            object.__setattr__(self, "size", _pair("size", self.size))
        if self.crop is not None and not isinstance(self.crop, int):
            object.__setattr__(self, "crop", _pair("crop", self.crop))
        if self.crop is not None and self.resize == "letterbox":
            raise _refused("crop", self.crop, "letterbox shows the whole picture; leave out one")
        if isinstance(self.crop, int) and (isinstance(self.crop, bool) or self.crop < 1):
            raise _refused("crop", self.crop, "use a number of pixels")
        for name in ("mean", "std"):
            object.__setattr__(self, name, _channels(name, getattr(self, name)))
        if any(value == 0 for value in self.numbers("std")):
            raise _refused("std", self.std, "it divides, and cannot be 0")

    @property
    def swaps(self) -> bool:
        """Return whether the order of the channels changes."""
        return self.color in _SWAPS

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return `mean` or `std` as numbers: one, or one for each channel."""
        value = getattr(self, name)
        return value if isinstance(value, tuple) else (value,)

    def placing(self, height: int, width: int) -> Placing:
        """Return the place of the picture in an input of this size.

        Raises
        ------
        InputError
            The sizes differ and nothing says how to resize, or the crop is larger than the picture.
        """
        old_height, old_width = self.size or (height, width)
        if self.crop is not None:
            new_height, new_width = self._before_crop(old_height, old_width)
            if new_height < height or new_width < width:
                raise _refused(
                    "crop",
                    self.crop,
                    f"it makes the picture {new_height}×{new_width}, and the network takes "
                    f"{height}×{width}",
                )
        elif self.resize == "letterbox":
            ratio = min(height / old_height, width / old_width)
            new_height, new_width = round(old_height * ratio), round(old_width * ratio)
        else:
            new_height, new_width = height, width
        if self.resize is None and self.crop is None and (old_height, old_width) != (height, width):
            raise _refused(
                "size",
                self.size,
                f"the network takes {height}×{width}; say how to resize: resize='bilinear' or "
                "'letterbox'",
            )
        # Half a pixel more lies below and at the right, as ultralytics and torchvision round.
        down, right = (height - new_height) / 2, (width - new_width) / 2
        return Placing(
            new_height,
            new_width,
            round(down - 0.1) if down >= 0 else -round(-down),
            round(right - 0.1) if right >= 0 else -round(-right),
            new_height / old_height,
            new_width / old_width,
        )

    def _before_crop(self, height: int, width: int) -> tuple[int, int]:
        if not isinstance(self.crop, int):
            assert self.crop is not None, "asked by the caller"
            return self.crop
        short = min(height, width)
        # The longer side is cut down to whole pixels, as torchvision does.
        return int(self.crop * height / short), int(self.crop * width / short)


def _pair(name: str, value: Any) -> tuple[int, int]:
    try:
        height, width = (int(length) for length in value)
    except (TypeError, ValueError) as err:
        raise _refused(name, value, "use a height and a width, as (480, 640)") from err
    if height < 1 or width < 1:
        raise _refused(name, value, "use a height and a width, as (480, 640)")
    return height, width


def _channels(name: str, value: Any) -> float | tuple[float, ...]:
    try:
        if hasattr(value, "__iter__"):
            return tuple(float(each) for each in value)
        return float(value)
    except (TypeError, ValueError) as err:
        raise _refused(name, value, "use a number, or one for each channel") from err


def _refused(name: str, value: Any, advice: str) -> InputError:
    return InputError(
        f"Picture({name}={value!r}) is not possible; {advice}", name=name, got=repr(value)
    )
