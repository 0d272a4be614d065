"""Compiler passes with names, and the list that runs and prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import tvm

from tvm_edge.compiler.compilation import Clock, Compilation
from tvm_edge.interrupts import raise_pending_interrupt
from tvm_edge.schedules.typical import typical_lengths

__all__ = [
    "CPU_CORES",
    "OTHER_DEVICES",
    "SEVERAL",
    "WHOLE_GROUPS",
    "WINDOWED",
    "CompilerPass",
    "Pipeline",
    "on_module",
]

Condition = Callable[[Compilation], bool]

_ON_HOST = frozenset(("quantize", "simplify", "place", "precision"))
"""Phases that evaluate constants for the host; later ones do for the device."""


CPU_CORES: tuple[Condition, str] = (lambda c: c.resolved.spec.has_cpu_cores, "cores of a CPU")
OTHER_DEVICES: tuple[Condition, str] = (
    lambda c: not c.resolved.spec.has_cpu_cores,
    "other devices",
)
SEVERAL: tuple[Condition, str] = (lambda c: len(c.placed.kinds) > 1, "several devices")
WINDOWED: tuple[Condition, str] = (lambda c: c.plan.conv_window is not None, "weights streamed")
WHOLE_GROUPS: tuple[Condition, str] = (lambda c: c.work_group is None, "but in smaller work-groups")


def _always(_compilation: Compilation) -> bool:
    return True


@dataclass(frozen=True)
class CompilerPass:
    """One step of a compilation.

    Attributes
    ----------
    phase, name : str
    apply : callable
        Makes the next :class:`Compilation` of one.
    applies : callable
        Whether there is anything to do; :attr:`condition` says in words when.
    condition : str
    optional : bool
        Whether a compilation can be made without it: it makes a model faster or smaller.
    """

    phase: str
    name: str
    apply: Callable[[Compilation], Compilation]
    applies: Condition = _always
    condition: str = ""
    optional: bool = False

    def when(self, applies: Condition, condition: str) -> CompilerPass:
        """Return this pass for some compilations only; `condition` is printed beside its name."""
        return replace(self, applies=applies, condition=condition)

    def made_optional(self) -> CompilerPass:
        """Return this pass as one that a compilation can be made without."""
        return replace(self, optional=True)


def on_module(
    phase: str,
    make: Callable[[Compilation], tvm.transform.Pass] | tvm.transform.Pass,
    name: str = "",
) -> CompilerPass:
    """Wrap a pass of TVM's kind, or what makes one for a compilation.

    Parameters
    ----------
    phase : str
    make : Pass or callable
        A callable needs the `name` that is printed.
    name : str
    """
    if isinstance(make, tvm.transform.Pass):
        made = make
        return CompilerPass(phase, str(made.info.name), lambda c: replace(c, module=made(c.module)))
    return CompilerPass(phase, name, lambda c: replace(c, module=make(c)(c.module)))


@dataclass(frozen=True)
class Pipeline:
    """A list of passes.

    Examples
    --------
    >>> print(Pipeline((on_module("simplify", tvm.relax.transform.FoldConstant()),)))
    simplify     FoldConstant
    """

    passes: tuple[CompilerPass, ...]

    def __str__(self) -> str:
        rows = [f"{p.phase:12} {p.name}{p.condition and f'  ({p.condition})'}" for p in self.passes]
        return "\n".join(rows)

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of the passes that a compilation can be made without, each once."""
        return tuple(dict.fromkeys(each.name for each in self.passes if each.optional))

    def part(self, first: str = "", until: str = "") -> Pipeline:
        """Return the passes from the one called `first` to before the one called `until`."""
        names = [each.name for each in self.passes]
        begin = names.index(first) if first else 0
        end = names.index(until, begin) if until else len(names)
        return Pipeline(self.passes[begin:end])

    def run(self, compilation: Compilation) -> Compilation:
        """Apply every pass; with ``TVM_EDGE_DUMP=dir`` write the module after each."""
        done = compilation
        for _, done in self.steps(compilation):  # noqa: B007
            pass
        return done

    def steps(self, compilation: Compilation) -> Iterator[tuple[CompilerPass, Compilation]]:
        """Apply pass after pass, and yield each with what it made."""
        for number, each in enumerate(self.passes):
            compilation.clock.report(each.phase, number, len(self.passes))
            raise_pending_interrupt()
            with compilation.clock(each.phase, each.name):
                if each.name in compilation.without or not each.applies(compilation):
                    continue
                resolved = compilation.resolved
                target = resolved.cpu.target if each.phase in _ON_HOST else resolved.target
                with target, typical_lengths(compilation.typical):
                    compilation = each.apply(compilation)
                compilation.dump(f"{each.phase}-{each.name}")
            yield each, compilation

    def nested(self, compilation: Compilation) -> Compilation:
        """Run inside of a pass, whose time it is."""
        return self.run(replace(compilation, clock=Clock()))
