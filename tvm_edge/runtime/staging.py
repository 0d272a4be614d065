"""Memory with the alignment that kernels of the CPU need of inputs and weights."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from tvm_edge.runtime.dlpack import share_array
from tvm_edge.runtime.inputs import Bound

__all__ = [
    "ALIGNMENT",
    "FrameInputs",
    "Staging",
    "aligned_copy",
    "as_tensor",
    "is_aligned",
    "unaligned_zeros",
]

ALIGNMENT = 64  # TVM's kAllocAlignment; kernels may load whole cache lines
"""Bytes of which the address of a kernel's argument is a multiple."""


class Staging:
    """Aligned memory for a model's inputs, to be used again.

    Copying 224×224×3 floats costs 12 µs, and 28 with memory of its own. An input of open
    dimensions has as much memory as its largest shape needed until then.
    """

    def __init__(self) -> None:
        self._memory: dict[int, tvm.runtime.Tensor] = {}
        self._staged: dict[int, tuple[tvm.runtime.Tensor, np.ndarray]] = {}

    def copied(self, index: int, array: np.ndarray) -> tuple[tvm.runtime.Tensor, np.ndarray]:
        """A tensor with the values of input `index`, and an array over it."""
        staged = self._staged.get(index)
        if staged is None or staged[1].shape != array.shape:
            staged = self._staged[index] = _over(self._buffer(index, array.nbytes), array)
        np.copyto(staged[1], array)
        return staged

    def _buffer(self, index: int, nbytes: int) -> tvm.runtime.Tensor:
        memory = self._memory.get(index)
        if memory is None or memory.shape[0] < nbytes:
            memory = self._memory[index] = tvm.runtime.empty((nbytes,), "uint8")
        return memory


class FrameInputs:
    """Prepare frames of a stream: inputs in memory that their source does not write.

    Parameters
    ----------
    bind : callable
        From what a caller hands in to inputs.
    """

    def __init__(self, bind: Callable[[Mapping[str, Any]], Sequence[Bound]]) -> None:
        self._bind = bind
        self._slots: defaultdict[int, Staging] = defaultdict(Staging)

    def __call__(self, frame: Mapping[str, Any], slot: int) -> list[Bound]:
        """The inputs of a frame, those in host memory copied to the slot's."""
        inputs = self._bind(frame)
        staging = self._slots[slot]
        return [
            staging.copied(index, value)[1] if isinstance(value, np.ndarray) else value
            for index, value in enumerate(inputs)
        ]


def is_aligned(array: np.ndarray) -> bool:
    """Return whether kernels of the CPU read an array where it is."""
    # A kernel reading from a pointer off these bytes ends in SIGSEGV: LLVM's loads assume them.
    address: int = array.__array_interface__["data"][0]  # five times as fast as array.ctypes
    return address % ALIGNMENT == 0


def _aligned(array: np.ndarray) -> tuple[tvm.runtime.Tensor, np.ndarray]:
    """A new CPU tensor like `array`, and an array over it."""
    return _over(tvm.runtime.empty((array.nbytes,), "uint8"), array)


def _over(memory: tvm.runtime.Tensor, like: np.ndarray) -> tuple[tvm.runtime.Tensor, np.ndarray]:
    """A tensor of the shape and type of `like` at the beginning of some memory, and an array."""
    begin = np.from_dlpack(memory)[: like.nbytes]
    return (
        memory._create_view(like.shape, str(like.dtype)),
        begin.view(like.dtype).reshape(like.shape),
    )


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """A copy that kernels read where it is."""
    _, view = _aligned(array)
    np.copyto(view, array)
    return view


def unaligned_zeros(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """Zeros that kernels of the CPU cannot read where they are, as most arrays of NumPy."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.zeros(nbytes + 16, "uint8")
    begin = 16 if is_aligned(raw) else 0
    return raw[begin : begin + nbytes].view(dtype).reshape(shape)


def as_tensor(array: np.ndarray) -> tvm.runtime.Tensor:
    """A CPU tensor with the array's values, over the array's memory where that is aligned."""
    return share_array(array if is_aligned(array) else aligned_copy(array))
