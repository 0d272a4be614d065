"""A two-dimensional convolution as kernels are chosen and recorded by it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ConvWorkload"]


@dataclass(frozen=True)
class ConvWorkload:
    """Two-dimensional convolution, whatever the layout.

    Attributes
    ----------
    batch, channels, height, width : int
        The image.
    filters : int
        Output channels.
    kernel, strides, dilation : tuple of int
        Along lines and columns.
    padding : tuple of int
        Top, left, bottom, right.
    groups : int
    dtype : {"float32", "float16", "bfloat16", "tf32", "uint8", "int8"}
        Of the image. 8-bit images are multiplied by int8 filters and added up in int32. Tensor
        cores alone have ``tf32``, which is float32 that they round. ``float16`` is multiplied as
        that, by tensor cores or CPUs that do; elsewhere it counts as float32. ``bfloat16`` is of
        CPUs. Not part of the text, which names networks in records of layouts.
    """

    batch: int
    channels: int
    height: int
    width: int
    filters: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    dtype: str = field(default="float32", repr=False)

    @property
    def output(self) -> tuple[int, int]:
        """Lines and columns of the output."""
        top, left, bottom, right = self.padding
        sizes = (self.height + top + bottom, self.width + left + right)
        lines, columns = (
            (size - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, dilation in zip(
                sizes, self.kernel, self.strides, self.dilation, strict=True
            )
        )
        return lines, columns

    @property
    def macs(self) -> int:
        """Multiply-adds."""
        lines, columns = self.output
        window = self.kernel[0] * self.kernel[1]
        return self.batch * self.filters * lines * columns * window * self.channels // self.groups

    @property
    def depthwise(self) -> bool:
        """Return whether each output channel reads one input channel of its own."""
        return 1 < self.groups == self.channels == self.filters

    @property
    def is_bytes(self) -> bool:
        """Return whether images are of 8-bit numbers."""
        return self.dtype in ("uint8", "int8")
