"""Pictures on the command line."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["EXAMPLE", "parse_pictures"]

EXAMPLE = "data:size=720x1280,color=BGR->RGB,resize=letterbox,std=255"


def parse_pictures(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any] | None:
    """Parse pictures by input: ``NAME:KEY=VALUE,…``; numbers of channels are written ``a/b/c``."""
    if not values:
        return None
    from tvm_edge.frontend.picture import Picture

    pictures = {}
    for value in values:
        name, colon, text = value.rpartition(":")
        fields: dict[str, Any] = {}
        for part in text.split(","):
            key, equals, word = (each.strip() for each in part.partition("="))
            if not (colon and name and equals) or key not in Picture.__dataclass_fields__:
                raise click.BadParameter(
                    f"{part!r} of {value!r} is not KEY=VALUE of a picture (for example "
                    f"{EXAMPLE}); keys: {', '.join(Picture.__dataclass_fields__)}"
                )
            fields[key] = _picture_value(key, word)
        pictures[name] = Picture(**fields)
    return pictures


def _picture_value(key: str, word: str) -> Any:
    try:
        if key == "size" or (key == "crop" and "x" in word):
            return tuple(int(length) for length in word.split("x"))
        if key == "crop":
            return int(word)
        if key in ("mean", "std", "fill"):
            numbers = [float(number) for number in word.split("/")]
            return numbers if len(numbers) > 1 else numbers[0]
    except ValueError as err:
        raise click.BadParameter(f"{key}={word} is not possible: {err}") from err
    if key == "antialias":
        return word in ("1", "true", "yes", "on")
    return word
