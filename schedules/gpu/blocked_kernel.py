"""Analysis of a reduction in channel blocks of 16 bytes, and its epilogue.

The kernels in CUDA C read their geometry off an annotation. What the function itself shows is where
the image lies, in the result of a concatenation perhaps, and what follows the reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, s_tir, sym, tirx

from tvm_edge.schedules.accesses import Access, accesses, constant
from tvm_edge.schedules.analysis import accepts, root_blocks
from tvm_edge.schedules.gpu.epilogue import Memory, substituted
from tvm_edge.schedules.gpu.tensor_conv import BLOCKS
from tvm_edge.schedules.gpu.tensor_epilogue import TensorEpilogue
from tvm_edge.schedules.gpu.written import buffers_of
from tvm_edge.schedules.knobs import CONFIG
from tvm_edge.schedules.stages import (
    epilogue_of,
    epilogue_stores_in_order,
    isolate,
    open_reduction,
)

__all__ = ["BlockedKernel", "Operands", "epilogue_in_blocks"]


@dataclass(frozen=True)
class Operands:
    """Positions of image and filters among a function's tensors.

    Attributes
    ----------
    image, filters : int
    planes : int
        Channel blocks of the tensor that has the image.
    first : int
        The image's first block in it.
    """

    image: int
    filters: int
    planes: int
    first: int


@dataclass(frozen=True)
class BlockedKernel:
    """Function, analyzed.

    Attributes
    ----------
    func : PrimFunc
        With two blocks: padding is a condition on loads.
    geometry, config : str
        Annotations of the block that reduces; `config` may be empty.
    reduction, epilogue : SBlock
    """

    func: tirx.PrimFunc
    geometry: str
    config: str
    reduction: s_tir.SBlock
    epilogue: s_tir.SBlock

    @staticmethod
    def of(func: tirx.PrimFunc, annotation: str, *, product: bool = True) -> BlockedKernel | None:
        """Analyze `func`; return ``None`` if its reduction is not annotated so, or no `product`."""
        opened = open_reduction(func)
        if opened is None:
            return None
        sch, block = opened
        notes = sch.get(block).annotations
        if annotation not in notes:
            return None
        geometry, config = str(notes[annotation]), str(notes.get(CONFIG, ""))
        for access in _reads(sch.get(block)):
            if any(access.buffer.same_as(param) for param in buffers_of(func)):
                continue
            padding = isolate(sch, block, access.buffer)
            if padding is not None and not accepts(sch.compute_inline, padding):
                return None
            break
        else:
            isolate(sch, block, _reads(sch.get(block))[0].buffer)
        epilogue = sch.get(epilogue_of(sch, block))
        made, reduction = sch.mod["main"], sch.get(block)
        if len(root_blocks(sch)) != 2:
            return None
        if not epilogue_stores_in_order(made, reduction, epilogue, product=product):
            return None
        return BlockedKernel(made, geometry, config, reduction, epilogue)

    @property
    def accumulators(self) -> tirx.Buffer:
        """Result of the reduction: ``[N, blocks, lines, columns, b]``, or ``[rows, columns]``."""
        return self.reduction.writes[0].source

    @property
    def lanes(self) -> int:
        """Channels of a block."""
        image = next(a.buffer for a in _reads(self.reduction))
        return BLOCKS[str(image.dtype)]

    @property
    def blocks(self) -> int:
        """Channel blocks of the result."""
        return _blocks(self.accumulators, self.lanes)

    def operands(self, filters: Sequence[int], dtype: str) -> Operands | None:
        """Return operands of a type, given the shape of the filters; ``None`` if they are others.

        Without a shape there are no filters, and the image is in their place.
        """
        found: dict[bool, int] = {}
        params = buffers_of(self.func)
        image: Access | None = None
        for access in _reads(self.reduction):
            at = next((i for i, p in enumerate(params) if p.same_as(access.buffer)), None)
            if at is None or str(access.buffer.dtype) != dtype:
                return None
            is_filters = [constant(d) for d in access.buffer.shape] == list(filters)
            if found.setdefault(is_filters, at) != at:
                return None
            image = image if is_filters else access
        if image is None or (True in found) != bool(filters):
            return None
        lanes = BLOCKS[dtype]
        width = 1 if len(image.buffer.shape) == 5 else lanes
        zero = tirx.const(0, "int32")
        nowhere = [(var.var, zero) for var in self.reduction.iter_vars]
        first = constant(sym.Analyzer().simplify(substituted(image.indices[1], nowhere)))
        if first is None or first % width:
            return None
        own = found.get(True, found[False])
        return Operands(found[False], own, _blocks(image.buffer, lanes), first // width)

    def epilogue_over(self, flat: Sequence[Any]) -> TensorEpilogue:
        """Return the epilogue with the parameters as vectors."""
        return epilogue_in_blocks(
            self.func,
            self.epilogue,
            [int(d) for d in self.accumulators.shape],
            self.lanes,
            flat,
            self.accumulators,
        )


def epilogue_in_blocks(
    func: tirx.PrimFunc,
    block: s_tir.SBlock,
    shape: Sequence[int],
    lanes: int,
    flat: Sequence[Any],
    accumulators: tirx.Buffer | None = None,
) -> TensorEpilogue:
    """Return a block as the epilogue of accumulators, or of nothing.

    Parameters
    ----------
    func : PrimFunc
    block : SBlock
        Its variables run over `shape`.
    shape : sequence of int
        ``[N, blocks, lines, columns, lanes]``, or ``[rows, columns]`` of whole blocks.
    lanes : int
        Channels of a block.
    flat : sequence of buffer
        The parameters as vectors.
    accumulators : buffer, optional
    """
    image_size = shape[2] * shape[3] if len(shape) == 5 else 1
    blocks = shape[1] if len(shape) == 5 else shape[1] // lanes
    extents = {"image": shape[0], "block": blocks, "pixel": image_size, "lane": lanes}
    simplify = sym.Analyzer()
    axes = [tirx.Var(name, "int32") for name in extents]
    for axis, extent in zip(axes, extents.values(), strict=True):
        simplify.bind(axis, ir.Range(0, extent))
    image, own, pixel, lane = axes
    places: list[tirx.Expr] = [image, own * lanes + lane]
    if len(shape) == 5:
        line, column = tirx.floordiv(pixel, shape[3]), tirx.floormod(pixel, shape[3])
        places = [image, own, line, column, lane]
    memory = Memory(buffers_of(func), flat, simplify)
    return TensorEpilogue(block, accumulators, memory, axes, places)


def _blocks(buffer: tirx.Buffer, lanes: int) -> int:
    """Channel blocks of an image in blocks, or of a matrix."""
    columns = int(buffer.shape[1])
    return columns if len(buffer.shape) == 5 else columns // lanes


def _reads(block: s_tir.SBlock) -> list[Access]:
    """Return the accesses of the operands of a reduction."""
    written = block.writes[0].source
    return [access for access in accesses(block)[0] if not access.buffer.same_as(written)]
