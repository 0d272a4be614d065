"""Register tiles of matrix products that read their matrix in panels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, gcd

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import divisors
from tvm_edge.schedules.cpu.float16_runs import run_length, shuffles

__all__ = [
    "UNROLLED",
    "Tile",
    "choose_open_tile",
    "choose_tile",
    "float16_steps",
    "panel_width",
]

UNROLLED = 4
"""Steps of the reduction that are unrolled; with eight a tile outgrows the µop cache."""

# A fused multiply-add has a latency of four cycles, and two start per cycle.
_LATENCY = 8
_MAX_VECTORS = 4
# Rows of a tile where only the run tells how many there are: few are left by whole tiles.
_MAX_OPEN_ROWS = 8
# Bytes of a line and of a way of an L1 cache, and its ways.
_LINE, _WAY, _WAYS = 64, 4096, 8


@dataclass(frozen=True)
class Tile:
    """Accumulators that stay in registers.

    Attributes
    ----------
    rows : int
        Of the operand on the left.
    vectors : int
        Vector registers along a row of the output.
    """

    rows: int
    vectors: int


def choose_tile(
    rows: int,
    columns: int,
    spec: DeviceSpec,
    lanes: int,
    *,
    batch: int = 1,
    width: int = 0,
    float16_steps: int = 0,
) -> Tile:
    """The tile with the fewest cycles for a step of the reduction over the whole output.

    Parameters
    ----------
    rows, columns : int
        Of the product.
    spec : DeviceSpec
        Its vector registers bound the tile.
    lanes : int
        Elements of a vector register.
    batch : int
        Number of products.
    width : int
        Columns of a panel where the matrix is packed already, 0: to be chosen.
    float16_steps : int
        Steps of the reduction if its vectors are of float16, else 0.
    """
    shuffled = float16_steps > 0 and not spec.multiplies_by_element
    step, tallest = (_shuffled_step, _rows_in_l1(float16_steps)) if shuffled else (_step, rows)
    best, best_cost = Tile(1, max(1, width // lanes)), float("inf")
    most = min(_MAX_VECTORS, ceil(columns / lanes))
    for vectors in [width // lanes] if width else range(1, most + 1):
        # Accumulators, the vectors of a step, one broadcast element.
        registers = spec.vector_registers - vectors - 1
        for tall in range(1, max(1, min(rows, tallest, registers // vectors)) + 1):
            panels, rest = divmod(columns, vectors * lanes)
            alone = 1  # cores that wait for the last, incomplete panel
            if batch < spec.cores and rows <= columns:  # panels are the tasks
                panels = ceil(panels / spec.cores) * spec.cores
                alone = spec.cores
            cost = panels * _panel_cost(rows, tall, vectors, step)
            if rest:
                cost += alone * _panel_cost(rows, tall, ceil(rest / lanes), step)
            if cost < best_cost:
                best, best_cost = Tile(tall, vectors), cost
    return best


def _rows_in_l1(steps: int) -> int:
    """Return how many rows of float16 an L1 cache holds a line of, at the same step of each.

    Lines a multiple of 4 KiB apart are in one set, of eight and more.
    """
    return _WAYS * min(_WAY // gcd(2 * steps, _WAY), _WAY // _LINE)


def _panel_cost(rows: int, tall: int, vectors: int, step: Callable[[int, int], float]) -> float:
    """Half cycles of a step of the reduction for all rows of a panel."""
    full, rest = divmod(rows, tall)
    return full * step(tall, vectors) + (step(rest, vectors) if rest else 0)


def _step(rows: int, vectors: int) -> float:
    return max(rows * vectors, _LATENCY) + 0.5 * (rows + vectors)


def _shuffled_step(rows: int, vectors: int) -> float:
    """Half cycles of a step of float16 on x86."""
    return max(rows * vectors + shuffles(rows, vectors), _LATENCY) + 0.5 * vectors


def choose_open_tile(columns: int, spec: DeviceSpec, lanes: int, *, width: int = 0) -> Tile:
    """The tile with the fewest cycles for an element, where only the run tells the rows.

    Parameters are those of :func:`choose_tile`. Columns that are whole vectors are whole tiles.
    """
    count = ceil(columns / lanes)
    most = min(_MAX_VECTORS, count)
    exact = columns % lanes == 0
    counts = divisors(count, most) if exact else range(1, most + 1)
    tiles = []
    for vectors in [width // lanes] if width else counts:
        rows = max(1, (spec.vector_registers - vectors - 1) // vectors)
        tiles.append(Tile(min(rows, _MAX_OPEN_ROWS), vectors))

    def cost(tile: Tile) -> float:
        panels = ceil(count / tile.vectors)
        return panels * _step(tile.rows, tile.vectors) / tile.rows

    return min(tiles, key=cost)


def float16_steps(reduction: int, spec: DeviceSpec) -> int:
    """Return the steps of a reduction that is to be added up in float16.

    0 where it does not divide into runs that are worth their additions.
    """
    unrolled, most = divisors(reduction, UNROLLED)[-1], run_length(spec)
    run = unrolled * divisors(reduction // unrolled, most // unrolled)[-1]
    return reduction if reduction <= 2 * most or 2 * run >= most else 0


def panel_width(
    rows: int | None,
    columns: int,
    spec: DeviceSpec,
    *,
    batch: int = 1,
    float16_steps: int = 0,
) -> int:
    """Columns of a panel to pack a matrix in, for so many rows on the left.

    With ``None`` only the run tells how many. `batch` and `float16_steps` are those of
    :func:`choose_tile`.
    """
    if rows is None:
        lanes = spec.lanes()
        return choose_open_tile(columns, spec, lanes).vectors * lanes
    lanes = spec.lanes(2 if float16_steps else 4)
    tile = choose_tile(rows, columns, spec, lanes, batch=batch, float16_steps=float16_steps)
    return tile.vectors * lanes
