"""``memory_budget=``: from what a user writes to bytes."""

from __future__ import annotations

import os
import re
from numbers import Integral
from typing import Any

from tvm_edge.errors import InputError

__all__ = ["machine_bytes", "parse_budget", "written"]

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([a-zA-Z]*)", re.ASCII)
_MOST = 1 << 60


def parse_budget(value: Any) -> int | None:
    """Bytes of a memory budget.

    Parameters
    ----------
    value : int, str or None
        Bytes; or a number and a unit, as ``"512MiB"``, ``"1.5 GB"``, ``"65536"``. Units are those
        of IEC 80000-13: ``GiB`` is 2**30 bytes and ``GB`` 10**9, in upper or lower case.

    Raises
    ------
    InputError
        Not a size, or less than one byte.

    Examples
    --------
    >>> parse_budget("1.5 GiB")
    1610612736
    """
    if value is None:
        return None
    nbytes: float | None = None
    if isinstance(value, Integral) and not isinstance(value, bool):
        nbytes = int(value)
    elif isinstance(value, str):
        match = _NUMBER.fullmatch(value.strip())
        unit = None if match is None else _UNITS.get(match.group(2).lower())
        if match is not None and unit is not None:
            nbytes = float(match.group(1)) * unit
    if nbytes is None or not 1 <= nbytes <= _MOST:
        raise InputError(
            f"memory_budget={value!r} is not a size; give a positive number of bytes, or a number "
            "with a unit of B, KiB, MiB, GiB, TiB, kB, MB, GB or TB: '512MiB', '1.5 GB'",
            name="memory_budget",
            expected="a size, as '512MiB'",
            got=repr(value),
        )
    return int(nbytes)


def machine_bytes() -> int | None:
    """Memory of the machine we run on; ``None`` where the operating system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def written(nbytes: int) -> str:
    """Write bytes as :func:`parse_budget` reads them, rounded up: ``"61.3 MiB"``."""
    tenths = -(-10 * nbytes // 2**20)
    return f"{tenths / 10:.1f} MiB"
