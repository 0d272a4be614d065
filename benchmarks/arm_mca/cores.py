"""Cycles of a loop on a Cortex-A53, A55, A72, A76 or A78AE, or on a Neoverse N2.

Two counts, of which the larger one stands. LLVM's ``llvm-mca`` runs the loop on its model of the
core, where it has one: its A55, and its Neoverse N1 (an A76 for servers, whose guide has the same
table) for A76 and A78AE. For an A72 all versions take the A57's. The Neoverse N2, with its own
model, stands for cores that multiply matrices (``smmla``), Cortex-A710 and newer.

The other count is of the limits of Arm's optimisation guides, and of what was measured:

- A55: two instructions in order, registers ready. A 128-bit multiply-add takes both halves of the
  vector unit. A 128-bit vector load takes two cycles in which nothing else starts (ncnn's notes,
  ONNX Runtime's kernels); one of 64 bits starts beside a multiply-add. LLVM's model has neither.
- A53: there is no guide, and LLVM's model starts an ``fmla`` in four cycles, where boards start one
  a cycle (11.3 GFLOP/s at 1.4 GHz by cpufp, 8 a cycle). Limits are those of the A55, but no
  multiply-add starts beside a load of 64 bits into a vector (ncnn's notes).
- A72: three instructions are decoded; a 128-bit multiply-add takes both 64-bit pipes (15.9 GFLOP/s
  at 2 GHz were measured, 8 a cycle); one load. ``smull`` and ``smlal`` start in one of the pipes,
  ``sadalp`` in the other.
- A76, A78AE: four instructions are decoded; two vector pipes of 128 bits; two loads.
- N2: five instructions are dispatched; two vector pipes, both of which multiply matrices; three
  loads.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.arm_mca.assembly import Instruction, Loop

__all__ = ["CORES", "Core", "find_mca"]

_ITERATIONS = 100
_OLDEST = 19
"""The first version of LLVM that Debian has whose model of the Neoverse N1 is one."""


@dataclass(frozen=True)
class Core:
    """A core's issue limits.

    Attributes
    ----------
    macs : float
        128-bit multiply-adds that start in a cycle, by Arm's guide.
    pairs : float
        Cycles of ``smull``, ``smlal`` and ``sadalp``; 0: the core has dot products.
    decoded : int
        Instructions a cycle.
    loads, vectors : float
        128-bit loads and vector operations a cycle.
    latency : Mapping[str, int]
        Cycles from one multiply-add to the next of the same accumulator.
    model : str
        ``-mcpu`` of llvm-mca; empty: it has no model.
    unit : str
        What the names of the model's units begin with.
    dispatch : int
        µops that llvm-mca may dispatch; 0: as the model says.
    in_order : bool
    loads_alone : bool
        Whether no vector operation starts beside a load of half a vector.
    """

    macs: float
    decoded: int
    loads: float
    vectors: float
    latency: Mapping[str, int]
    model: str = ""
    unit: str = ""
    dispatch: int = 0
    in_order: bool = False
    pairs: float = 0
    loads_alone: bool = False

    def limit(self, loop: Loop) -> float:
        """Return the cycles of its multiply-adds alone."""
        pairs = sum(one.name == "sadalp" for one in loop.body)
        return pairs * self.pairs + (loop.macs - pairs) / self.macs

    def most(self, dtype: str, *, matrices: bool = False) -> float:
        """Return the most multiply-adds of numbers that start in a cycle, maybe of matrices."""
        if dtype == "int8" and self.pairs:
            return _PRODUCTS[dtype] / self.pairs
        return _PRODUCTS[dtype] * self.macs * (2 if matrices else 1)

    def cycles(self, loop: Loop, mca: str) -> tuple[float, float | None]:
        """Return cycles of an iteration by the guide, and by llvm-mca if it has the core."""
        guide = self.by_guide(loop)
        return guide, self._simulated(loop.body, mca) if self.model else None

    def by_guide(self, loop: Loop) -> float:
        """Return the cycles of an iteration by the guide's limits."""
        if self.in_order:
            return _in_order(loop.body, loads_alone=self.loads_alone)
        return self._out_of_order(loop.body)

    def _out_of_order(self, body: Sequence[Instruction]) -> float:
        loads = sum(_transfers(one) for one in body if one.loads)
        stores = sum(_transfers(one) for one in body if one.stores)
        work = [one for one in body if one.bits and not one.loads and not one.stores]
        pairs = [one for one in work if one.multiplies or one.name == "sadalp"]
        multiplied = sum(one.multiplies for one in pairs)
        vectors = sum(
            1 / self.macs
            if one.is_mac and one not in pairs
            else (128 if one in pairs else one.bits) / 128 / self.vectors
            for one in work
        )
        vectors = max(vectors, multiplied, len(pairs) - multiplied)
        chains: Counter[str] = Counter()
        for one in body:
            if one.is_mac:
                chains[one.written[0]] += self.latency.get(one.name, 4)
        longest = max(chains.values(), default=0)
        return max(len(body) / self.decoded, loads / self.loads, stores, vectors, longest)

    def _simulated(self, body: Sequence[Instruction], mca: str) -> float:
        text = "\n".join(_without_branch(one) for one in body)
        command = [mca, "-mtriple=aarch64", f"-mcpu={self.model}", f"-iterations={_ITERATIONS}"]
        command += ["-mattr=+dotprod,+fullfp16,+i8mm,+bf16"]
        command += [f"-dispatch={self.dispatch}"] if self.dispatch else []
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{mca} does not take the loop: {done.stderr[-500:]}")
        if f" - {self.unit}" not in done.stdout:
            raise RuntimeError(f"the model that {mca} has for {self.model} is of another core")
        total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
        assert total is not None, "llvm-mca always says the total"
        return int(total.group(1)) / _ITERATIONS


_A76 = {"fmla": 2, "sdot": 1, "udot": 1, "smmla": 1}
_PRODUCTS = {"float32": 4, "float16": 8, "int8": 16}
"""Multiply-adds of numbers by an instruction, or by smull, smlal and sadalp together."""

CORES: Mapping[str, Core] = {
    "cortex-a53": Core(1, 2, 1, 1, {}, in_order=True, pairs=3, loads_alone=True),
    "cortex-a55": Core(1, 2, 1, 1, {}, model="cortex-a55", unit="CortexA55Unit", in_order=True),
    "cortex-a72": Core(1, 3, 1, 2, {"fmla": 3, "sadalp": 1}, pairs=2),
    "cortex-a76": Core(2, 4, 2, 2, _A76, model="neoverse-n1", unit="N1Unit", dispatch=8),
    "cortex-a78ae": Core(2, 4, 2, 2, _A76, model="neoverse-n1", unit="N1Unit", dispatch=8),
    "neoverse-n2": Core(2, 5, 3, 2, _A76, model="neoverse-n2", unit="N2Unit"),
}
"""Cores by ``mcpu``."""


def find_mca() -> str:
    """Return the newest llvm-mca here.

    Raises
    ------
    SystemExit
        There is none that is new enough.
    """
    names = [f"llvm-mca-{version}" for version in range(40, _OLDEST - 1, -1)]
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        raise SystemExit(f"no llvm-mca-{_OLDEST} or newer; apt-get install llvm-22 or llvm-19")
    return found


def _without_branch(one: Instruction) -> str:
    """Return the instruction for llvm-mca, which has no labels."""
    return re.sub(r"\.L\w+$", "#0", one.text)


def _transfers(one: Instruction) -> float:
    """Return how many times 128 bits, or less than that, are moved."""
    return 2 if one.name in ("ldp", "stp") and one.bits == 128 else 1


_LATENCIES = {"fmul": 4, "fadd": 4, "ins": 2, "mov": 2, "dup": 2}


def _in_order(body: Sequence[Instruction], *, loads_alone: bool) -> float:
    """Return the cycles of an iteration on the A55, once its first iterations are over.

    Parameters
    ----------
    loads_alone : bool
        See :class:`Core`; the A53's.
    """
    ready: dict[str, int] = {}
    cycle, started, vector, memory, blocked = 0, 0, -1, -1, 0
    ends = []
    for _ in range(12):
        for one in body:
            at = max([cycle, blocked, *(_ready(ready, one))])
            # A multiply-add of 128 bits has the vector unit for itself, as any load has its unit.
            alone = one.loads and one.bits == 128
            half = loads_alone and one.loads and one.bits == 64
            if half or (not alone and one.bits == 128 and not one.stores and not _inserts(one)):
                at = max(at, vector + 1)
            if one.loads or one.stores:
                at = max(at, memory + 1)
            if at == cycle and (started == 2 or (alone and started)):
                at += 1
            if at > cycle:
                cycle, started = at, 0
            started += 1
            if one.loads or one.stores:
                memory = at
            if alone:
                blocked = at + (4 if one.name == "ldp" else 2)
            elif half or (one.bits == 128 and not one.stores and not _inserts(one)):
                vector = at + (1 if half and one.name == "ldp" else 0)
            latency = (
                3
                if one.loads
                else 4
                if one.is_mac or one.multiplies
                else _LATENCIES.get(one.name, 1)
            )
            for register in one.written:
                ready[register] = at + latency + (1 if alone else 0)
        ends.append(cycle)
    return (ends[-1] - ends[3]) / (len(ends) - 4)


def _inserts(one: Instruction) -> bool:
    """Return whether it puts a general register into half a vector."""
    return one.name in ("ins", "mov", "fmov") and bool(re.search(r"\bx\d+$", one.text))


def _ready(ready: Mapping[str, int], one: Instruction) -> list[int]:
    return [ready[register] for register in one.read if register in ready] or [-math.inf]  # type: ignore[list-item]
