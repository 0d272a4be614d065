"""Loops of AArch64 assembly as LLVM writes it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

__all__ = ["Code", "Instruction", "Loop"]

_LABEL = re.compile(r"([.\w$]+):$")
_BRANCH = re.compile(r"(?:b|b\.\w+|cbn?z|tbn?z)\s+(?:.*,\s*)?(\.L\w+)$")
_REGISTER = re.compile(r"\b([vqdshb]|[xw])(\d+)\b(\.16b|\.8b|\.[248]\w)?")
_MAC = ("fmla", "sdot", "udot", "smmla", "sadalp")


@dataclass(frozen=True)
class Instruction:
    """One instruction; registers are ``v7`` or ``x7`` at any width."""

    text: str

    @cached_property
    def name(self) -> str:
        """Return the mnemonic."""
        return self.text.split(None, 1)[0]

    @property
    def is_mac(self) -> bool:
        """Return whether it adds products to accumulators; smull's are added by sadalp."""
        return self.name in _MAC

    @property
    def multiplies(self) -> bool:
        """Return whether it multiplies 8-bit numbers to 16 bits."""
        return self.name in ("smull", "smull2", "smlal", "smlal2")

    @property
    def loads(self) -> bool:
        """Return whether it reads memory."""
        return self.name.startswith("ld")

    @property
    def stores(self) -> bool:
        """Return whether it writes memory."""
        return self.name.startswith("st")

    @property
    def spills(self) -> bool:
        """Return whether it stores a vector register on the stack, or loads one from there."""
        return (self.loads or self.stores) and "[sp" in self.text and bool(self._vectors)

    @cached_property
    def _vectors(self) -> list[str]:
        return re.findall(r"\b[vqds]\d+", self.text.split("[")[0])

    @property
    def bits(self) -> int:
        """Return the width of its vector registers; 0 if it has none."""
        operands = self.text.split("[")[0]
        if re.search(r"\bq\d|\.(16b|8h|4s|2d)\b|\bv\d+\.d\b", operands):
            return 128
        return 64 if re.search(r"\b[vdsh]\d", operands) else 0

    @cached_property
    def _registers(self) -> list[str]:
        found = _REGISTER.findall(self.text.split(None, 1)[-1])
        return [("x" if kind in "xw" else "v") + number for kind, number, _ in found]

    @cached_property
    def written(self) -> list[str]:
        """Return the registers that it writes, without addresses it moves."""
        if self.stores or self.name in ("cmp", "cmn", "tst", "b") or not self._registers:
            return []
        count = len(self._vectors) if self.name in ("ldp", "ldnp") else 1
        if self.name == "ldp" and not self._vectors:
            count = 2
        if self.name.startswith("ld1"):
            count = self.text.split("}")[0].count("v")
        return self._registers[:count]

    @cached_property
    def read(self) -> list[str]:
        """Return the registers that it reads, an accumulator among them."""
        keeps = self.is_mac or self.stores or self.name in ("ins", "cmp", "cmn", "tst")
        keeps = keeps or self.name.startswith("smlal")
        inserts = self.name == "mov" and "[" in self.text.split(",")[0]
        keeps = keeps or inserts or (self.name == "ld1" and "}[" in self.text.replace(" ", ""))
        return self._registers if keeps else self._registers[len(self.written) :]


@dataclass(frozen=True)
class Loop:
    """Instructions from a label to the branch back to it.

    Attributes
    ----------
    first, last : int
        In the code.
    body : sequence of Instruction
    """

    first: int
    last: int
    body: Sequence[Instruction] = field(repr=False)

    @property
    def macs(self) -> int:
        """Return how many instructions multiply and add."""
        return sum(one.is_mac for one in self.body)

    @property
    def accumulators(self) -> int:
        """Return how many registers they add to."""
        return len({one.written[0] for one in self.body if one.is_mac})

    @property
    def is_product(self) -> bool:
        """Return whether each accumulator has as many products, as in no transform."""
        return len(set(Counter(one.written[0] for one in self.body if one.is_mac).values())) == 1

    @property
    def spills(self) -> int:
        """Return how many vectors go to the stack or come from there."""
        return sum(one.spills for one in self.body)

    def __contains__(self, other: Loop) -> bool:
        return self.first <= other.first and other.last <= self.last and self != other


class Code:
    """Instructions of a module, and its loops.

    Parameters
    ----------
    text : str
        Of an assembly file.
    """

    def __init__(self, text: str) -> None:
        labels: dict[str, int] = {}
        self.instructions: list[Instruction] = []
        for line in text.splitlines():
            words = line.split("//")[0].strip()
            label = _LABEL.match(words)
            if label:
                labels[label.group(1)] = len(self.instructions)
            elif words and not words.startswith("."):
                self.instructions.append(Instruction(words))
        self.loops: list[Loop] = []
        for last, one in enumerate(self.instructions):
            branch = _BRANCH.match(one.text)
            first = labels.get(branch.group(1)) if branch else None
            if first is not None and first <= last:
                self.loops.append(Loop(first, last, self.instructions[first : last + 1]))

    @property
    def inner(self) -> list[Loop]:
        """Return loops that multiply and have no loop inside."""
        return [one for one in self.loops if one.macs and not any(b in one for b in self.loops)]

    def around(self, loop: Loop) -> list[Loop]:
        """Return the loops around one, innermost first."""
        return sorted((one for one in self.loops if loop in one), key=lambda one: len(one.body))
