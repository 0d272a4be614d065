"""Numbers as unsigned words of equal order, so that one comparison sorts every type.

The order is NumPy's: -0 equals +0, and NaN comes last, in descending order too. Words have 32 bits,
and types of 64 bits have two words. Sorts are stable, so that they can sort by one word after the
other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

__all__ = ["SORTABLE", "WORD", "keys_of", "ordered_words", "pack", "position_of", "word_count"]

WORD = "uint64"
"""Type of a sorted word: a 32-bit key above the position of its element."""

_INFINITY = {"float16": 0x7C00, "float32": 0x7F800000, "float64": 0x7FF00000}  # of the first word
_BITS = {
    "bool": 8,
    "uint8": 8,
    "int8": 8,
    "uint16": 16,
    "int16": 16,
    "float16": 16,
    "uint32": 32,
    "int32": 32,
    "float32": 32,
    "uint64": 64,
    "int64": 64,
    "float64": 64,
}
_ONES = (1 << 32) - 1

SORTABLE = frozenset(_BITS)
"""Element types that have words."""


def keys_of(
    dtype: str, descending: bool, value: Callable[[Any], tirx.Expr]
) -> list[Callable[[Any], tirx.Expr]]:
    """Return functions from a position to 32-bit keys of its element, least significant first."""

    def key(number: int) -> Callable[[Any], tirx.Expr]:
        return lambda at: ordered_words(value(at), dtype, descending)[number]

    return [key(number) for number in range(word_count(dtype))]


def pack(key: tirx.Expr, position: tirx.Expr) -> tirx.Expr:
    """Pack a sorted word: equal keys come in the order of their positions, no two are equal."""
    return (key.astype(WORD) << tirx.const(32, WORD)) | position.astype(WORD)


def position_of(word: tirx.Expr) -> tirx.Expr:
    """Return the position in a word."""
    return (word & tirx.const((1 << 32) - 1, WORD)).astype("int32")


def word_count(dtype: str) -> int:
    """Count the words of a type: 1, or 2 where it has 64 bits."""
    return max(_BITS[dtype] // 32, 1)


def ordered_words(value: tirx.Expr, dtype: str, descending: bool) -> list[tirx.Expr]:
    """Return the words of a number: ``a`` comes before ``b`` where its words are less.

    Parameters
    ----------
    value : tirx.Expr
        A load of `dtype`.
    dtype : str
        One of :data:`SORTABLE`.
    descending : bool
        Whether greater numbers come first.

    Returns
    -------
    list of tirx.Expr
        ``uint32``, the least significant first. Those of a NaN are all ones.
    """
    bits = _BITS[dtype]
    sign = _const(1 << (min(bits, 32) - 1))
    if dtype in _INFINITY:
        *rest, top = _split(tirx.reinterpret(f"uint{bits}", value), bits)
        return _floating(top, rest, sign, _const(_INFINITY[dtype]), descending)
    if dtype.startswith("int"):
        # Small types are sign-extended: the sign bit of the word is then the number's.
        bits = max(bits, 32)
        sign = _const(1 << 31)
        *rest, top = _split(tirx.reinterpret(f"uint{bits}", value.astype(f"int{bits}")), bits)
        return [_flip(word, descending) for word in (*rest, top ^ sign)]
    unsigned = value.astype("uint8") if dtype == "bool" else value
    return [_flip(word, descending) for word in _split(unsigned, bits)]


def _floating(
    top: tirx.Expr,
    rest: list[tirx.Expr],
    sign: tirx.Expr,
    infinity: tirx.Expr,
    descending: bool,
) -> list[tirx.Expr]:
    """Flip all bits of negative numbers, so that greater magnitudes come first; -0 as +0."""
    magnitude = top & (sign - _const(1))
    more = [word != _const(0) for word in rest]
    negative = tirx.all((top & sign) != _const(0), tirx.any(magnitude != _const(0), *more))
    is_nan = tirx.any(
        magnitude > infinity, *(tirx.all(magnitude == infinity, some) for some in more)
    )
    ordered = tirx.Select(negative, sign - _const(1) - magnitude, sign + magnitude)
    words = [tirx.Select(negative, word ^ _const(_ONES), word) for word in rest]
    return [
        tirx.Select(is_nan, _const(_ONES), _flip(word, descending)) for word in (*words, ordered)
    ]


def _const(number: int) -> tirx.Expr:
    return tirx.const(number, "uint32")


def _flip(word: tirx.Expr, descending: bool) -> tirx.Expr:
    return word ^ _const(_ONES) if descending else word


def _split(pattern: tirx.Expr, bits: int) -> list[tirx.Expr]:
    """Split an unsigned number into 32-bit words, the least significant first."""
    if bits < 64:
        return [pattern.astype("uint32")]
    return [
        pattern.astype("uint32"),
        (pattern >> tirx.const(32, "uint64")).astype("uint32"),
    ]
