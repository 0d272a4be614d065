"""Options of commands that name what to measure by its number."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

__all__ = ["chosen_numbers"]


def chosen_numbers(
    parser: argparse.ArgumentParser, option: str, numbers: Sequence[int] | None, count: int
) -> list[int]:
    """The numbers that were asked for; all of `count` by default.

    Parameters
    ----------
    parser : ArgumentParser
        Ends the command where a number is of nothing.
    option : str
        As it is typed, for the message.
    numbers : sequence of int, optional
    count : int
        How many there are to choose from.
    """
    for number in numbers or ():
        if not 0 <= number < count:
            parser.error(f"argument {option}: there is no {number}; choose from 0 to {count - 1}")
    return list(numbers or range(count))
