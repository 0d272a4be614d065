"""Numbers as the page writes them."""

from __future__ import annotations

__all__ = [
    "NOTHING",
    "count",
    "decimals",
    "millions",
    "plural",
    "ratio",
    "short_flops",
    "size",
    "tail",
    "time",
]

_JOINED = "\u00a0"  # where a line does not break

NOTHING = "–"
"""Cell for what is not known."""


def decimals(value: float | None, places: int, scale: float = 1) -> str:
    """A number divided by `scale`, with so many digits after the point; all in a column alike."""
    return NOTHING if value is None else f"{value / scale:,.{places}f}"


def count(value: int | None) -> str:
    """A whole number."""
    return NOTHING if value is None else f"{value:,}"


def millions(value: int) -> str:
    """A count, of many in millions."""
    return f"{value / 1e6:.2f}{_JOINED}M" if value >= 100_000 else f"{value:,}"


def ratio(part: float, whole: float) -> str:
    """Per cent."""
    return f"{part / whole if whole else 0:.1%}"


def size(nbytes: float) -> str:
    """Bytes in the unit that suits them."""
    if nbytes < 1024:
        return f"{nbytes:.0f}{_JOINED}B"
    for unit in ("KiB", "MiB"):
        nbytes /= 1024
        if nbytes < 1000:
            return f"{nbytes:.{0 if nbytes >= 100 else 1}f}{_JOINED}{unit}"
    return f"{nbytes / 1024:.2f}{_JOINED}GiB"


def short_flops(flops: float) -> str:
    """FLOPs in the unit that suits them."""
    for unit, scale in (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if flops >= scale:
            return f"{flops / scale:,.{0 if flops >= 100 * scale else 2}f}{_JOINED}{unit}"
    return f"{flops:.0f}{_JOINED}FLOP"


def time(microseconds: float) -> str:
    """Microseconds in the unit that suits them."""
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.2f}{_JOINED}s"
    if microseconds >= 1e3:
        return f"{microseconds / 1e3:.2f}{_JOINED}ms"
    return f"{microseconds:.1f}{_JOINED}µs"


def plural(number: int, what: str) -> str:
    """``1 row``, ``2 rows``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def tail(text: str, length: int) -> str:
    """The end of a name, which is where names of one model differ."""
    return text if len(text) <= length else "…" + text[len(text) - length + 1 :]
