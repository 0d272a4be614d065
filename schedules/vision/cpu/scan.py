"""Prefix sums and other scans on a CPU.

Many lines one after the other in memory are divided among the cores. A long line is scanned in
blocks that fit into the cores' caches. Each core first reduces and then scans a part of the block,
so that memory is read once. Lines side by side are scanned in vectors across them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, either, function, register, registers, spread, when
from tvm_edge.schedules.vision.operators import OPERATORS, Associative

__all__ = ["scan_lines"]

# Elements of a step within a line: its results do not wait for those of the step before.
_STEP = 32
# Accumulators that a reduction keeps side by side.
_LANES = 64
# Neighbouring lines that a core scans together.
_ACROSS = 64
# Elements of a line below which one core scans it faster than several that synchronize.
_MIN_TO_SHARE = 1 << 16


def scan_lines(
    dtype: str,
    out_dtype: str,
    spec: DeviceSpec,
    *,
    operator: str = "add",
    exclusive: bool = False,
    reverse: bool = False,
) -> Kernel:
    """Scan the middle axis of ``(outer, length, inner)``, for any sizes.

    Parameters and result as of :func:`tvm_edge.schedules.vision.gpu.scan_lines`, without workspace.
    """
    outer, length, inner = (tirx.Var(name, "int64") for name in ("outer", "length", "inner"))
    shape = [outer, length, inner]
    kind = "float32" if out_dtype == "float16" else out_dtype

    def body(data: Any, result: Any) -> None:
        def table(stride: Any) -> _Table:
            """Return the lines, `stride` apart; a stride that is the constant 1 allows vectors."""
            size = [outer * length * stride]
            flat, out = (
                T.buffer_proxy(T.decl_buffer(size, buffer.dtype, buffer.data))
                for buffer in (data, result)
            )

            def address(line: Any, at: Any, across: Any) -> tirx.Expr:
                return (line * length + at) * stride + across

            def load(*where: Any) -> tirx.Expr:
                return flat[address(*where)].astype(kind)

            def store(line: Any, at: Any, across: Any, value: tirx.Expr) -> None:
                out[address(line, at, across)] = value.astype(out_dtype)

            return _Table(load, store, length, reverse)

        scan = _Scan(kind, OPERATORS[operator], exclusive)
        either(
            inner == 1,
            lambda: _scan_along(scan, table(1), outer, spec),
            lambda: _scan_across(scan, table(inner), outer, inner),
        )

    return function([(shape, dtype)], [(shape, out_dtype)], body)


@dataclass(frozen=True)
class _Table:
    """Lines in memory.

    Attributes
    ----------
    fetch, put : callable
        Read and write an element by line, address in the line, and place among the lines.
    length : tirx.Expr
        Of a line.
    reverse : bool
        Whether a scan's first element is a line's last.
    """

    fetch: Callable[..., tirx.Expr]
    put: Callable[..., None]
    length: tirx.Expr
    reverse: bool

    def load(self, line: Any, at: Any, across: Any) -> tirx.Expr:
        """Read the scan's element `at`."""
        return self.fetch(line, self.length - 1 - at if self.reverse else at, across)

    def store(self, line: Any, at: Any, across: Any, value: tirx.Expr) -> None:
        """Write the scan's result `at`."""
        self.put(line, self.length - 1 - at if self.reverse else at, across, value)


class _Scan:
    """The serial parts of a scan."""

    def __init__(self, kind: str, operator: Associative, exclusive: bool) -> None:
        self.kind, self.exclusive = kind, exclusive
        self.combine = operator.combine
        self.identity = operator.identity(kind)

    def span(self, table: _Table, line: Any, first: Any, last: Any, sofar: Any) -> None:
        """Scan a part of a line on top of ``sofar[0]``, which then is the total."""
        steps = T.Bind(tirx.floordiv(last - first, _STEP))
        own = registers(_STEP, self.kind)
        with T.serial(0, steps) as step:
            at = T.Bind(first + step * _STEP)
            # The step is first scanned by itself: only one operation waits for the step before.
            for i in range(_STEP):
                own[i] = table.load(line, at + i, 0)
            distance = 1
            while distance < _STEP:
                for i in range(_STEP - 1, distance - 1, -1):
                    own[i] = self.combine(own[i - distance], own[i])
                distance *= 2
            before = T.Bind(sofar[0])
            if self.exclusive:
                table.store(line, at, 0, before)
            for i in range(_STEP - self.exclusive):
                value = self.combine(before, own[i])
                table.store(line, at + i + self.exclusive, 0, value)
            sofar[0] = self.combine(before, own[_STEP - 1])
        rest = T.Bind(first + steps * _STEP)
        with T.serial(0, last - rest) as i:
            before = T.Bind(sofar[0])
            after = T.Bind(self.combine(before, table.load(line, rest + i, 0)))
            table.store(line, rest + i, 0, before if self.exclusive else after)
            sofar[0] = after

    def total(self, table: _Table, line: Any, first: Any, last: Any) -> tirx.Expr:
        """Reduce a part of a line, in any order: the operators are commutative."""
        start = T.Bind(table.length - last if table.reverse else first)
        count = T.Bind(last - first)
        accumulators = registers(_LANES, self.kind)
        with T.vectorized(0, _LANES) as i:
            accumulators[i] = self.identity
        steps = T.Bind(tirx.floordiv(count, _LANES))
        with T.serial(0, steps) as step, T.vectorized(0, _LANES) as i:
            accumulators[i] = self.combine(
                accumulators[i], table.fetch(line, start + step * _LANES + i, 0)
            )
        whole = register(accumulators[0])
        with T.serial(1, _LANES) as i:
            whole[0] = self.combine(whole[0], accumulators[i])
        rest = T.Bind(start + steps * _LANES)
        with T.serial(0, start + count - rest) as i:
            whole[0] = self.combine(whole[0], table.fetch(line, rest + i, 0))
        return T.Bind(whole[0])


def _scan_along(scan: _Scan, table: _Table, outer: tirx.Expr, spec: DeviceSpec) -> None:
    cores, length = max(spec.cores, 1), table.length
    # Elements of a core's part of a block: after the reduction it should still be in a cache.
    own_cache = spec.l2_cache or 1 << 18
    shared_cache = min(spec.l3_cache // (2 * cores), 4 * own_cache)
    part = max(own_cache, shared_cache) // (tvm.DataType(scan.kind).bits // 8)

    def alone() -> None:
        def one(line: tirx.Expr) -> None:
            scan.span(table, line, tirx.const(0, "int64"), length, register(scan.identity))

        spread(outer, outer * length, one)

    def together() -> None:
        totals = T.buffer_proxy(T.decl_buffer([cores, cores - 1], scan.kind))
        sofar = T.buffer_proxy(T.decl_buffer([1], scan.kind))
        with T.serial(0, outer) as line:
            sofar[0] = scan.identity
            blocks = tirx.floordiv(length + (cores * part - 1), cores * part)
            with T.serial(0, blocks) as block:
                start = T.Bind(block * (cores * part))
                stop = T.Bind(tirx.min(start + cores * part, length))
                own = T.Bind(tirx.floordiv(stop - start + (cores - 1), cores))

                def part_of(
                    number: Any, start: Any = start, stop: Any = stop, own: Any = own
                ) -> Any:
                    first = T.Bind(tirx.min(start + number * own, stop))
                    return first, T.Bind(tirx.min(first + own, stop))

                # All cores reduce all parts but the last, which no part waits for.
                with T.parallel(0, cores) as core:
                    for number in range(cores - 1):
                        first, last = part_of(number)
                        ends = [
                            T.Bind(first + tirx.floordiv((last - first) * (core + i), cores))
                            for i in (0, 1)
                        ]
                        totals[core, number] = scan.total(table, line, *ends)
                before = T.Bind(sofar[0])
                with T.parallel(0, cores) as core:
                    front = register(before)
                    with T.serial(0, core) as number, T.serial(0, cores) as i:
                        front[0] = scan.combine(front[0], totals[i, number])
                    scan.span(table, line, *part_of(core), front)
                    with when(core == cores - 1):
                        sofar[0] = front[0]

    if cores == 1:
        alone()
        return
    either(tirx.all(outer < cores, length >= _MIN_TO_SHARE), together, alone)


def _scan_across(scan: _Scan, table: _Table, outer: tirx.Expr, inner: tirx.Expr) -> None:
    length = table.length
    strips = T.Bind(tirx.floordiv(inner + (_ACROSS - 1), _ACROSS))
    with T.parallel(0, outer * strips) as task:
        line = T.Bind(tirx.floordiv(task, strips))
        first = T.Bind(tirx.floormod(task, strips) * _ACROSS)
        width = T.Bind(tirx.min(inner - first, _ACROSS))
        accumulators = registers(_ACROSS, scan.kind)
        with T.serial(0, _ACROSS) as i:
            accumulators[i] = scan.identity

        def row(count: Any, at: Any) -> None:
            with T.serial(0, count) as i:
                before = T.Bind(accumulators[i])
                after = T.Bind(scan.combine(before, table.load(line, at, first + i)))
                table.store(line, at, first + i, before if scan.exclusive else after)
                accumulators[i] = after

        # With a constant width the compiler uses vectors.
        with T.If(width == _ACROSS):
            with T.Then(), T.serial(0, length) as at:
                row(_ACROSS, at)
            with T.Else(), T.serial(0, length) as at:
                row(width, at)
