"""Pictures enlarged by whole factors on a CPU, each pixel repeated.

A vector of pixels is loaded once, woven with itself, and stored in all lines that it makes.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, function, hold, in_pieces, registers

__all__ = ["enlarge_planes"]


def enlarge_planes(
    planes: Any, size: tuple[int, int], factors: tuple[int, int], dtype: str, spec: DeviceSpec
) -> Kernel:
    """Build the kernel of ``[planes, height, width]``.

    Parameters
    ----------
    planes : int or tirx.Var
    size : (int, int)
        Height and width of the operand.
    factors : (int, int)
        How often a line and a column are repeated.
    dtype : str
    spec : DeviceSpec
        The CPU: the width of its vectors.
    """
    (height, width), (down, across) = size, factors

    def body(x: Any, y: Any) -> None:
        with T.parallel(0, planes * height) as task:
            plane, line = hold(task // height), hold(task % height)

            def piece(first: Any, count: int) -> None:
                # Of registers it is one load for all that is woven of it.
                loaded = registers(count, dtype)
                with T.vectorized(0, count) as lane:
                    loaded[lane] = x[plane, line, first + lane]
                for part in range(across):
                    vector = _woven(loaded, [(part * count + i) // across for i in range(count)])
                    start = first * across + part * count
                    for copy in range(down):
                        y[plane, line * down + copy, _vector(start, count)] = vector

            in_pieces(width, spec.lanes(), piece)

    new = [planes, height * down, width * across]
    return function([([planes, height, width], dtype)], [(new, dtype)], body)


def _woven(loaded: Any, places: list[int]) -> tirx.Expr:
    if len(places) == 1:
        return loaded[0]
    indices = [tirx.IntImm("int32", place) for place in places]
    return tirx.Shuffle([loaded[_vector(0, len(places))]], indices)


def _vector(start: Any, count: int) -> Any:
    if count == 1:
        return start
    first = tirx.IntImm("int32", start) if isinstance(start, int) else start
    return tirx.Ramp(first, tirx.const(1, first.ty.dtype), count)
