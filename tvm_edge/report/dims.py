"""Dimensions of inputs whose lengths come with the data of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tvm_edge.errors import InputError

__all__ = ["Dim", "by_name", "parse_dim"]

_PICTURE = 256
"""Length of an axis that is none of a batch, where nothing tells a typical one."""

_TEXT = re.compile(
    r"(?P<name>[^=@/]+?)(?:=(?P<min>\d+)\.\.(?P<max>\d*))?(?:/(?P<multiple>\d+))?"
    r"(?:@(?P<typical>\d+))?"
)


@dataclass(frozen=True)
class Dim:
    """A dimension that is open: the data of a run say how long it is.

    Inputs with dimensions of one name have the same length there.

    Attributes
    ----------
    name : str
    min : int
        Smallest length; 0 lets tensors without elements in.
    max : int or None
        Largest length; ``None`` for any.
    multiple : int
        Lengths are divisible by it.
    typical : int or None
        The length that kernels are made fastest for; ``None`` leaves it to the compiler.

    Raises
    ------
    InputError
        No length is all of this.

    Examples
    --------
    >>> print(Dim("w", min=32, max=2048, multiple=8, typical=320).text)
    w=32..2048/8@320
    """

    name: str
    min: int = 1
    max: int | None = None
    multiple: int = 1
    typical: int | None = None

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise InputError(
                f"the dimension {self.name!r} {problem}; write it as "
                "Dim('w', min=32, max=2048, multiple=8, typical=320)",
                name=str(self.name),
            )

    def _problem(self) -> str:
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable():
            return "has no name that can be printed"
        for field in ("min", "max", "multiple", "typical"):
            value = getattr(self, field)
            if value is None and field in ("max", "typical"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                return f"has {field}={value!r}, which is no length"
        if not self.multiple:
            return "has multiple=0, which nothing is divisible by"
        if self.max is not None and self.max // self.multiple * self.multiple < self.min:
            return f"has no length: {self.range_text}"
        if self.typical is not None and self.refusal(self.typical):
            return f"has typical={self.typical}, and takes {self.range_text}"
        return ""

    @property
    def range_text(self) -> str:
        """The lengths in words: ``32 to 2048, multiples of 8``."""
        whole = f"{self.min} or more" if self.max is None else f"{self.min} to {self.max}"
        return whole if self.multiple == 1 else f"{whole}, multiples of {self.multiple}"

    @property
    def text(self) -> str:
        """The dimension as the command line takes it."""
        parts = [self.name]
        if self.max is not None or self.min != 1:
            parts.append(f"={self.min}..{'' if self.max is None else self.max}")
        parts += [f"/{self.multiple}"] * (self.multiple != 1)
        parts += [f"@{self.typical}"] * (self.typical is not None)
        return "".join(parts)

    @property
    def largest(self) -> int | None:
        """The largest length; ``None`` for any."""
        return None if self.max is None else self.max // self.multiple * self.multiple

    def refusal(self, length: int) -> str:
        """Say why `length` is none of this dimension; empty if it is one."""
        if length < self.min or (self.max is not None and length > self.max):
            return f"{length} is outside of {self.range_text}"
        return f"{length} is no multiple of {self.multiple}" if length % self.multiple else ""

    def assumed(self, is_batch: bool) -> int:
        """Return the typical length, or one for a dimension that nothing is said of."""
        if self.typical is not None:
            return self.typical
        wanted = 1 if is_batch else _PICTURE
        wanted = min(max(wanted, self.min), wanted if self.max is None else self.max)
        wanted = max(wanted, self.min, 1)
        rounded = -(-wanted // self.multiple) * self.multiple
        return rounded if self.max is None or rounded <= self.max else rounded - self.multiple

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Dim:
        """The inverse of :meth:`to_dict`."""
        return cls(**fields)


def parse_dim(text: str) -> Dim:
    """Read :attr:`Dim.text`.

    Raises
    ------
    ValueError
        It is none.
    InputError
        No length is all that it says.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no dimension")
    found = {k: int(v) for k, v in match.groupdict().items() if v and k != "name"}
    return Dim(match["name"].strip(), **found)


def by_name(dims: Iterable[Dim]) -> dict[str, Dim]:
    """Return dimensions by their names.

    Raises
    ------
    InputError
        Two of one name that are not the same.
    """
    found: dict[str, Dim] = {}
    for dim in dims:
        if found.setdefault(dim.name, dim) != dim:
            raise InputError(
                f"the dimension {dim.name!r} is {found[dim.name].text} and {dim.text}; one name is "
                "one length: say the same of it everywhere, or call one of the two otherwise",
                name=dim.name,
            )
    return found
