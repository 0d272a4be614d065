"""The serial parts of CPU sorts: radix sort and merging of words.

An element is a 64-bit word: 32 bits of a key above its position. Keys of 64 bits are sorted by
their lower half first and then, as the sort is stable, by the upper one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.schedules.emit import either, register, registers
from tvm_edge.schedules.vision.keys import WORD, pack, position_of

__all__ = ["Read", "key_of", "merge", "select", "sort_keys", "sort_words"]

# Fewer elements than this are sorted by insertion: counting digits has a fixed price.
_FEW = 48
_DIGIT = 8
_BUCKETS = 1 << _DIGIT
_DIGITS = 32 // _DIGIT

Read = Callable[[Any], tirx.Expr]


def key_of(word: tirx.Expr) -> tirx.Expr:
    """Return the key of a word."""
    return (word >> tirx.const(32, WORD)).astype("uint32")


def sort_keys(
    front: Any, back: Any, base: Any, count: Any, keys: Sequence[Read], first: Any = 0
) -> None:
    """Sort the elements at `count` positions from `first` on.

    Their words end up in ``front[base:base + count]``; ``back`` is overwritten there.
    """
    with T.serial(0, count) as i:
        at = T.Bind(first + i)
        front[base + i] = pack(keys[0](at), at)
    sort_words(front, back, base, count)
    for key in keys[1:]:
        with T.serial(0, count) as i:
            position = T.Bind(position_of(front[base + i]))
            front[base + i] = pack(key(position), position)
        sort_words(front, back, base, count)


def sort_words(front: Any, back: Any, base: Any, count: Any) -> None:
    """Sort the words ``front[base:base + count]`` by their keys; equal keys keep their order."""
    either(
        count <= _FEW,
        lambda: _insertion_sort(front, base, count),
        lambda: _radix_sort(front, back, base, count),
    )


def _insertion_sort(words: Any, base: Any, count: Any, whole: bool = False) -> None:
    """Sort by keys, or by whole words."""

    def rank(word: tirx.Expr) -> tirx.Expr:
        return word if whole else key_of(word)

    with T.serial(1, count) as i:
        word = T.Bind(words[base + i])
        hole = register(i)

        def greater(hole: Any = hole, word: tirx.Expr = word) -> tirx.Expr:
            above = rank(words[base + hole[0] - 1]) > rank(word)
            return tirx.if_then_else(hole[0] > 0, above, tirx.const(False, "bool"))

        with T.While(greater()):
            words[base + hole[0]] = words[base + hole[0] - 1]
            hole[0] = hole[0] - 1
        words[base + hole[0]] = word


def _radix_sort(front: Any, back: Any, base: Any, count: Any) -> None:
    """Sort by the least significant digit first; an even number of passes ends where it began."""
    ends = registers(_DIGITS * _BUCKETS, "int32")

    def bucket(word: tirx.Expr, digit: int) -> tirx.Expr:
        shifted = (word >> tirx.const(32 + digit * _DIGIT, WORD)).astype("int32")
        return digit * _BUCKETS + (shifted & (_BUCKETS - 1))

    with T.serial(0, _DIGITS * _BUCKETS) as i:
        ends[i] = 0
    with T.serial(0, count) as i:
        word = T.Bind(front[base + i])
        for digit in range(_DIGITS):
            at = T.Bind(bucket(word, digit))
            ends[at] = ends[at] + 1
    for digit in range(_DIGITS):
        total = register(tirx.IntImm("int32", 0))
        with T.serial(0, _BUCKETS) as i:
            length = T.Bind(ends[digit * _BUCKETS + i])
            ends[digit * _BUCKETS + i] = total[0]
            total[0] = total[0] + length
    source, target = front, back
    for digit in range(_DIGITS):
        with T.serial(0, count) as i:
            word = T.Bind(source[base + i])
            at = T.Bind(bucket(word, digit))
            target[base + ends[at]] = word
            ends[at] = ends[at] + 1
        source, target = target, source


def select(words: Any, scratch: Any, count: Any, k: int) -> None:
    """Bring the `k` least of ``words[:count]`` to the front, in any order (quickselect).

    No two words are equal, and `count` is at least `k`. ``words[k - 1]`` is the greatest of them.
    """
    kind = "int32"
    low, high = register(tirx.const(0, kind)), register(count.astype(kind))

    def pick() -> tirx.Expr:
        """Return the median of three: neither the least nor the greatest."""
        a, b, c = (
            T.Bind(words[at]) for at in (low[0], tirx.floordiv(low[0] + high[0], 2), high[0] - 1)
        )
        return T.Bind(tirx.max(tirx.min(a, b), tirx.min(tirx.max(a, b), c)))

    with T.While(high[0] - low[0] > _FEW // 2):
        pivot = pick()
        start, stop = T.Bind(low[0]), T.Bind(high[0])
        before, behind = register(tirx.const(0, kind)), register(tirx.const(0, kind))
        with T.serial(0, stop - start) as i:
            word = T.Bind(words[start + i])
            # Written to both, counted in one: nothing to mispredict.
            words[start + before[0]] = word
            scratch[behind[0]] = word
            less = T.Bind((word < pivot).astype(kind))
            before[0] = before[0] + less
            behind[0] = behind[0] + 1 - less
        middle = T.Bind(start + before[0])
        with T.serial(0, behind[0]) as i:
            words[middle + i] = scratch[i]
        inside = T.Bind(middle >= k)
        high[0] = tirx.Select(inside, middle, stop)
        low[0] = tirx.Select(inside, start, middle)
    _insertion_sort(words, T.Bind(low[0]), T.Bind(high[0] - low[0]), whole=True)


def merge(
    source: Any,
    left: Any,
    right: Any,
    stop: Any,
    first: Any,
    last: Any,
    store: Callable[[tirx.Expr, tirx.Expr], None],
) -> None:
    """Merge the sorted words ``source[left:right]`` and ``source[right:stop]`` in part.

    `store` gets the elements `first` to `last` of the merger, each with its index in it.
    """
    lefts, rights = T.Bind(right - left), T.Bind(stop - right)
    low = register(tirx.max(0, first - rights))
    high = register(tirx.min(first, lefts))
    with T.While(low[0] < high[0]):
        middle = T.Bind((low[0] + high[0]) // 2)
        before = T.Bind(source[left + middle] < source[right + first - 1 - middle])
        low[0] = tirx.Select(before, middle + 1, low[0])
        high[0] = tirx.Select(before, high[0], middle)
    i, j = register(left + low[0]), register(right + first - low[0])
    kind = i.dtype
    with T.serial(0, last - first) as step:
        end = tirx.const((1 << 64) - 1, WORD)
        a = T.Bind(tirx.if_then_else(i[0] < right, source[i[0]], end))
        b = T.Bind(tirx.if_then_else(j[0] < stop, source[j[0]], end))
        take = T.Bind(a < b)
        store(first + step, tirx.Select(take, a, b))
        i[0] = i[0] + take.astype(kind)
        j[0] = j[0] + tirx.const(1, kind) - take.astype(kind)
