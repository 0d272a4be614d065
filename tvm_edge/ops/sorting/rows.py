"""Rows and workspace of sorts."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax

from tvm_edge.ops.kernel_site import KernelSite
from tvm_edge.schedules.vision.keys import WORD

__all__ = ["Rows", "workspace"]


class Rows:
    """Rows of a tensor along one of its axes."""

    def __init__(self, site: KernelSite, data: relax.Expr, axis: int) -> None:
        self._site, shape = site, list(data.ty.shape)
        axis %= len(shape)
        self._order = [i for i in range(len(shape)) if i != axis] + [axis]
        self._others = [shape[i] for i in self._order[:-1]]
        self._moves = axis != len(shape) - 1
        self.count, self.length = prod(self._others), shape[axis]
        self.dtype = str(data.ty.dtype)
        self._data = site.emit(relax.op.permute_dims(data, self._order)) if self._moves else data

    def flat(self) -> relax.Var:
        """Return the rows one after the other."""
        return self._site.reshape(self._data, [self.count * self.length])

    def table(self) -> relax.Var:
        """Return the rows as a matrix."""
        return self._site.reshape(self._data, [self.count, self.length])

    def restore(self, value: relax.Expr, length: Any) -> relax.Expr:
        """Give results of `length` elements a row the tensor's order of axes."""
        value = self._site.reshape(value, [*self._others, length])
        if not self._moves:
            return value
        back = sorted(range(len(self._order)), key=self._order.__getitem__)
        return self._site.emit(relax.op.permute_dims(value, back))


def workspace(site: KernelSite, size: Any) -> list[relax.TensorType]:
    """Return the types of the workspace that a CPU sorts in."""
    return [site.tensor([size], WORD)] * 2
