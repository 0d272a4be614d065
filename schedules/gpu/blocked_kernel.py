"""Analysis of a reduction in blocks of eight channels of float16, and its epilogue.

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
from tvm_edge.schedules.gpu.tensor_conv import BLOCK
from tvm_edge.schedules.gpu.tensor_epilogue import TensorEpilogue
from tvm_edge.schedules.gpu.written import buffers_of
from tvm_edge.schedules.knobs import CONFIG
from tvm_edge.schedules.stages import (
    epilogue_of,
    epilogue_stores_in_order,
    isolate,
    open_reduction,
)

__all__ = ["BlockedKernel", "Operands"]


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
    def of(func: tirx.PrimFunc, annotation: str) -> BlockedKernel | None:
        """Analyze `func`; return ``None`` if its reduction is not annotated so."""
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
        if len(root_blocks(sch)) != 2 or not epilogue_stores_in_order(made, reduction, epilogue):
            return None
        return BlockedKernel(made, geometry, config, reduction, epilogue)

    @property
    def accumulators(self) -> tirx.Buffer:
        """What the reduction writes, ``[N, blocks, lines, columns, 8]``."""
        return self.reduction.writes[0].source

    @property
    def blocks(self) -> int:
        """Channel blocks of the result."""
        return int(self.accumulators.shape[1])

    def operands(self, filters: Sequence[int]) -> Operands | None:
        """Return the operands, given the shape of the filters; ``None`` if they are others."""
        found: dict[bool, int] = {}
        params = buffers_of(self.func)
        image: Access | None = None
        for access in _reads(self.reduction):
            at = next((i for i, p in enumerate(params) if p.same_as(access.buffer)), None)
            if at is None or str(access.buffer.dtype) != "float16":
                return None
            is_filters = [constant(d) for d in access.buffer.shape] == list(filters)
            if found.setdefault(is_filters, at) != at:
                return None
            image = image if is_filters else access
        if set(found) != {False, True} or image is None:
            return None
        planes = int(image.buffer.shape[1])
        zero = tirx.const(0, "int32")
        nowhere = [(var.var, zero) for var in self.reduction.iter_vars]
        first = constant(sym.Analyzer().simplify(substituted(image.indices[1], nowhere)))
        if first is None:
            return None
        return Operands(found[False], found[True], planes, first)

    def epilogue_over(self, flat: Sequence[Any]) -> TensorEpilogue:
        """Return the epilogue with the parameters as vectors."""
        batch, blocks, lines, columns, _ = (int(d) for d in self.accumulators.shape)
        extents = {"image": batch, "block": blocks, "pixel": lines * columns, "lane": BLOCK}
        simplify = sym.Analyzer()
        axes = [tirx.Var(name, "int32") for name in extents]
        for axis, extent in zip(axes, extents.values(), strict=True):
            simplify.bind(axis, ir.Range(0, extent))
        image, block, pixel, lane = axes
        line, column = tirx.floordiv(pixel, columns), tirx.floormod(pixel, columns)
        memory = Memory(buffers_of(self.func), flat, simplify)
        places = [image, block, line, column, lane]
        return TensorEpilogue(self.epilogue, self.accumulators, memory, axes, places)


def _reads(block: s_tir.SBlock) -> list[Access]:
    """Return the accesses of the operands of a reduction."""
    written = block.writes[0].source
    return [access for access in accesses(block)[0] if not access.buffer.same_as(written)]
