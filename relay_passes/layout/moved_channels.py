"""Images in blocks whose channels were only moved: nothing is copied until somebody reads them.

Concatenations that do not fill blocks, splits, and shuffles (a reshape into groups, a
transposition, a reshape back).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvm_edge.relay_passes.ir.expressions import is_call, lengths_of, same_length

__all__ = ["BlockedImage", "Channel", "MovedChannels"]


@dataclass(frozen=True)
class BlockedImage:
    """An image in blocks: the variable, and how many of its channels are not filling."""

    var: relax.Var
    channels: int

    @property
    def block(self) -> int:
        """Channels in a block."""
        lengths = lengths_of(self.var.ty)
        assert lengths is not None and isinstance(lengths[-1], int)
        return lengths[-1]


@dataclass(frozen=True)
class Channel:
    """One channel of an image in blocks."""

    image: relax.Var
    number: int
    block: int


class MovedChannels:
    """Origin of each channel of a value: an image and a channel of it.

    Parameters
    ----------
    images : mapping of relax.Var to BlockedImage
        Images that have blocks, as far as the pass has come.
    parts : callable
        The images that a call concatenates along channels, ``None`` along another axis.
    """

    def __init__(
        self,
        images: Mapping[relax.Var, BlockedImage],
        parts: Callable[[relax.Call], list[relax.Expr] | None],
    ) -> None:
        self._images, self._parts = images, parts
        self._picked: dict[relax.Expr, np.ndarray] = {}
        self._splits: dict[relax.Expr, list[np.ndarray]] = {}

    def forget(self) -> None:
        """Forget what was noted, at the end of a dataflow."""
        self._picked.clear()
        self._splits.clear()

    def __contains__(self, expr: relax.Expr) -> bool:
        return expr in self._picked

    def of_image(self, expr: relax.Expr) -> np.ndarray | None:
        """The channels of an image that were moved; ``None`` of any other value."""
        picked = self._picked.get(expr)
        return None if picked is None or picked.ndim != 1 else picked

    def note(self, var: relax.Var, value: relax.Expr) -> None:
        """Note that `value` only moves channels of blocked images, if that is so."""
        if isinstance(value, relax.TupleGetItem):
            sections = self._splits.get(value.tuple_value)
            if sections is not None:
                self._picked[var] = sections[value.index]
        elif is_call(value, "relax.concat"):
            self._concat(var, value)
        elif is_call(value, "relax.split", "relax.reshape", "relax.permute_dims"):
            channels = self._channels(value.args[0])
            if channels is not None:
                self._move(var, value, channels)

    def _channels(self, expr: relax.Expr) -> np.ndarray | None:
        """The channels of any value; ``None`` if it has no blocks."""
        if expr in self._picked:
            return self._picked[expr]
        image = self._images.get(expr)
        if image is None:
            return None
        return _array([Channel(image.var, i, image.block) for i in range(image.channels)])

    def _concat(self, var: relax.Var, value: relax.Call) -> None:
        parts = self._parts(value)
        of_parts = [] if parts is None else [self._channels(part) for part in parts]
        known = [c for c in of_parts if c is not None and c.ndim == 1]
        picked = np.concatenate(known) if known and len(known) == len(of_parts) else None
        if picked is not None and len({channel.block for channel in picked}) == 1:
            self._picked[var] = picked

    def _move(self, var: relax.Var, value: relax.Call, channels: np.ndarray) -> None:
        if is_call(value, "relax.split"):
            if int(value.attrs.axis) % 4 == 1 and channels.ndim == 1:
                sizes = [(lengths_of(part) or (0, 0))[1] for part in value.ty.fields]
                self._splits[var] = np.split(channels, np.cumsum(sizes)[:-1])
            return
        before, after = lengths_of(value.args[0].ty), lengths_of(value.ty)
        if before is None or after is None:
            return
        if is_call(value, "relax.reshape"):
            grouped = after[1:-2]
            kept = zip((before[0], *before[-2:]), (after[0], *after[-2:]), strict=True)
            known = all(isinstance(length, int) for length in grouped)
            if grouped and known and all(same_length(a, b) for a, b in kept):
                self._picked[var] = channels.reshape(grouped)
            return
        rank = len(after)
        axes = [int(axis) for axis in value.attrs.axes or range(rank - 1, -1, -1)]
        if axes[0] == 0 and axes[-2:] == [rank - 2, rank - 1]:
            self._picked[var] = channels.transpose([axis - 1 for axis in axes[1:-2]])


def _array(channels: list[Channel]) -> np.ndarray:
    array = np.empty(len(channels), dtype=object)
    array[:] = channels
    return array
