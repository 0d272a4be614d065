"""Formats of 8-bit tensors on a device, and which convolutions of them have a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.dot_products import DOT_PRODUCTS
from tvm_edge.schedules.gpu.dot_products import dot_product_of
from tvm_edge.schedules.int8 import image_block

__all__ = ["Form", "form_of"]


@dataclass(frozen=True)
class Form:
    """Number formats and convolutions of a device.

    Attributes
    ----------
    stored : {"int8", "uint8"}
        The type of all 8-bit tensors between kernels.
    takes : callable
        Whether there is a kernel for a convolution.
    tables : bool
        Whether functions of one 8-bit number are tables.
    """

    stored: str
    takes: Callable[[ConvWorkload], bool]
    tables: bool = False


def form_of(spec: DeviceSpec) -> Form | None:
    """Return the formats of a device; ``None`` for a CPU that has no instruction for them."""
    if not spec.launches_grids:
        dot = DOT_PRODUCTS.get(spec.dot_product)
        if dot is None:
            return None
        return Form(dot.image, lambda conv: image_block(conv) > 0, spec.byte_tables)
    if spec.on_cpu:  # its kernels are a CPU's, and its compilers have no such instruction
        return None
    return Form(dot_product_of(spec).image, lambda conv: 0 not in conv.output)
