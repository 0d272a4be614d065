"""Numbers as unsigned words of the same order, so that one comparison sorts every type.

The order is NumPy's: -0 equals +0, and NaN comes last, in descending order too.
"""

from __future__ import annotations

from tvm import tirx

__all__ = ["SORTABLE", "ordered_word", "word_bits"]

_FLOATS = {"float16": (16, 0x7C00), "float32": (32, 0x7F800000), "float64": (64, 0x7FF << 52)}
_BITS = {
    "bool": 8,
    "uint8": 8,
    "int8": 8,
    "uint16": 16,
    "int16": 16,
    "uint32": 32,
    "int32": 32,
    "uint64": 64,
    "int64": 64,
} | {dtype: bits for dtype, (bits, _) in _FLOATS.items()}

SORTABLE = frozenset(_BITS)
"""Element types that have a word."""


def word_bits(dtype: str) -> int:
    """Bits of the word of a type: 32, or 64 where the type has as many."""
    return max(_BITS[dtype], 32)


def ordered_word(value: tirx.Expr, dtype: str, descending: bool) -> tirx.Expr:
    """The word of a number: ``a`` stands before ``b`` where ``word(a) < word(b)``.

    Parameters
    ----------
    value : tirx.Expr
        A load of `dtype`.
    dtype : str
        One of :data:`SORTABLE`.
    descending : bool
        Whether greater numbers stand in front.

    Returns
    -------
    tirx.Expr
        ``uint32``, or ``uint64`` where :func:`word_bits` says 64. A NaN is all ones.
    """
    bits = _BITS[dtype]
    wide = f"uint{word_bits(dtype)}"

    def const(number: int) -> tirx.Expr:
        return tirx.const(number, wide)

    def flip(word: tirx.Expr) -> tirx.Expr:
        return word ^ const((1 << word_bits(dtype)) - 1) if descending else word

    if dtype == "bool":
        value = value.astype("uint8")
    if dtype.startswith(("uint", "bool")):
        return flip(value.astype(wide))
    if dtype.startswith("int"):
        # Sign extension first: then the sign bit of the word is the number's.
        signed = value.astype(f"int{word_bits(dtype)}")
        return flip(tirx.reinterpret(wide, signed) ^ const(1 << (word_bits(dtype) - 1)))
    infinity = const(_FLOATS[dtype][1])
    sign = const(1 << (bits - 1))
    pattern = tirx.reinterpret(f"uint{bits}", value).astype(wide)
    magnitude = pattern & (sign - const(1))
    # Negative numbers: all bits flipped, so that greater magnitudes come first. -0 as +0.
    negative = tirx.all((pattern & sign) != const(0), magnitude != const(0))
    word = tirx.Select(negative, (sign - const(1)) - magnitude, sign + magnitude)
    nan = const((1 << word_bits(dtype)) - 1)
    return tirx.Select(magnitude > infinity, nan, flip(word))
