"""The first k of each row on a CPU.

A scan keeps the elements that come before the worst of the best k so far, and only compares most of
the others. Whenever the workspace is full it drops all kept elements but the best k.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, either, function, register, require, spread, when
from tvm_edge.schedules.vision.cpu.radix import Read, key_of, select, sort_keys, sort_words
from tvm_edge.schedules.vision.keys import WORD, keys_of, pack, position_of

__all__ = ["top_k_rows"]

# Elements that are compared at once, and one by one where any passes.
_CHUNK = 32
# Elements that are kept before anything is compared.
_LEAST = 16
# Elements of one row that are worth a second core.
_MIN_TO_SHARE = 1 << 15


def top_k_rows(dtype: str, k: int, spec: DeviceSpec, *, largest: bool, index_dtype: str) -> Kernel:
    """Build the kernel of the first `k` of each row in order, with their indices.

    Parameters
    ----------
    dtype : str
    k : int
        From 1 to the length of the rows.
    spec : DeviceSpec
    largest : bool
        Whether the greatest come first.
    index_dtype : {"int32", "int64"}

    Returns
    -------
    Kernel
        ``(data, indices, values)`` for any number of rows of any length.
    """
    rows, length = tirx.Var("rows", "int64"), tirx.Var("length", "int64")
    cores = max(spec.cores, 1)

    def body(data: Any, indices: Any, values: Any) -> None:
        def keys(row: tirx.Expr) -> list[Read]:
            return keys_of(dtype, largest, lambda at: data[row, at])

        def store(row: tirx.Expr, words: Any) -> None:
            with T.serial(0, k) as rank:
                position = T.Bind(position_of(words[rank]))
                indices[row, rank] = position.astype(index_dtype)
                values[row, rank] = data[row, position]

        def each_alone() -> None:
            spread(rows, rows * length, alone)

        def alone(row: tirx.Expr) -> None:
            if len(keys(row)) > 1:
                # Keys wider than a word's: sorted whole.
                words = [T.buffer_proxy(T.decl_buffer([length], WORD)) for _ in range(2)]
                sort_keys(*words, 0, length, keys(row))
                store(row, words[0])
                return
            best = _Best(k)
            best.scan(keys(row)[0], tirx.const(0, "int64"), length)
            best.sort()
            store(row, best.words)

        def together() -> None:
            """Process one row after the other, a part of it on each core."""
            found = T.buffer_proxy(T.decl_buffer([cores * k], WORD))
            counts = T.buffer_proxy(T.decl_buffer([cores], "int32"))
            with T.serial(0, rows) as row:
                with T.parallel(0, cores) as part:
                    ends = [tirx.floordiv(length * (part + s), cores) for s in (0, 1)]
                    best = _Best(k)
                    best.scan(keys(row)[0], T.Bind(ends[0]), T.Bind(ends[1]))
                    best.sort()
                    counts[part] = best.count[0]
                    with T.serial(0, best.count[0]) as i:
                        found[part * k + i] = best.words[i]
                room = cores * k
                words = [T.buffer_proxy(T.decl_buffer([room], WORD)) for _ in range(2)]
                count = register(tirx.IntImm("int32", 0))
                with T.serial(0, cores) as part, T.serial(0, counts[part]) as i:
                    words[0][count[0]] = found[part * k + i]
                    count[0] = count[0] + 1
                sort_words(*words, 0, T.Bind(count[0]))
                store(row, words[0])

        # The row length may only be known at run time.
        require(length >= k, f"a TopK asks for the first {k}, and there are fewer")
        if len(keys(tirx.const(0, "int64"))) > 1 or cores == 1:
            each_alone()
            return
        share = max(_MIN_TO_SHARE, 16 * k * cores)
        either(tirx.all(rows < cores, length >= share), together, each_alone)

    return function([([rows, length], dtype)], [([rows, k], index_dtype), ([rows, k], dtype)], body)


class _Best:
    """Best elements so far, in a workspace for about twice as many."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._room = max(2 * k, k + 2 * _LEAST) + _CHUNK
        self.words = T.buffer_proxy(T.decl_buffer([self._room], WORD))
        self._scratch = T.buffer_proxy(T.decl_buffer([self._room], WORD))
        self.count = register(tirx.IntImm("int32", 0))
        # Keys that do not come before this one cannot be among the best.
        self._limit = register(tirx.const((1 << 32) - 1, "uint32"))

    def scan(self, key: Read, first: tirx.Expr, last: tirx.Expr) -> None:
        """Scan the elements of a range, in the order of their positions."""
        if self._k == 1:
            self._scan_for_one(key, first, last)
            return
        # Without a limit yet, and with enough elements to find one.
        fill = T.Bind(tirx.min(last - first, max(self._k, _LEAST)))
        with T.serial(0, fill) as i:
            at = T.Bind(first + i)
            self.words[i] = pack(key(at), at)
        self.count[0] = fill.astype("int32")
        with when(last - first > fill):
            self._drop()
            at = register(first + fill)
            with T.While(at[0] + _CHUNK <= last):
                start = T.Bind(at[0])
                limit = T.Bind(self._limit[0])
                some = register(tirx.IntImm("int32", 0))
                with T.serial(0, _CHUNK) as i:
                    some[0] = some[0] | (key(start + i) < limit).astype("int32")
                with when(some[0] != 0):
                    with T.serial(0, _CHUNK) as i:
                        self._offer(key, start + i, limit)
                    with when(self.count[0] > self._room - _CHUNK):
                        self._drop()
                at[0] = start + _CHUNK
            limit = T.Bind(self._limit[0])
            with T.serial(0, last - at[0]) as i:
                self._offer(key, at[0] + i, limit)

    def sort(self) -> None:
        """Put the best in order and forget the others."""
        with when(self.count[0] > self._k):
            self._drop()
        sort_words(self.words, self._scratch, 0, T.Bind(self.count[0]))

    def _scan_for_one(self, key: Read, first: tirx.Expr, last: tirx.Expr) -> None:
        """Return the minimum of words, for which compilers use vectors."""
        least = register(tirx.const((1 << 64) - 1, WORD))
        with T.serial(0, last - first) as i:
            at = T.Bind(first + i)
            least[0] = tirx.min(least[0], pack(key(at), at))
        self.words[0] = least[0]
        self.count[0] = tirx.min(last - first, 1).astype("int32")

    def _offer(self, key: Read, at: tirx.Expr, limit: tirx.Expr) -> None:
        """Keep an element that comes before the limit; one as good came earlier and stays."""
        position = T.Bind(at)
        found = T.Bind(key(position))
        # Written in any case: no branch to mispredict.
        self.words[self.count[0]] = pack(found, position)
        self.count[0] = self.count[0] + (found < limit).astype("int32")

    def _drop(self) -> None:
        """Keep the best k, in any order."""
        select(self.words, self._scratch, T.Bind(self.count[0]), self._k)
        self.count[0] = self._k
        self._limit[0] = key_of(self.words[self._k - 1])
