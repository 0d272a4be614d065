"""What a compilation decided: where each operator runs, in which kernel, with which memory."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["CompileReport", "KernelInfo", "MemoryInfo", "Placement"]


@dataclass(frozen=True)
class Placement:
    """Where one operator of the user's model runs.

    Attributes
    ----------
    operator, op_type : str
        Name and type in the model.
    device : str
        ``"llvm"``, ``"opencl"``, …; empty for an operator that vanished at compile time.
    reason : str
        Why there.
    """

    operator: str
    op_type: str
    device: str
    reason: str


@dataclass(frozen=True)
class KernelInfo:
    """One kernel launch, in execution order.

    Attributes
    ----------
    name : str
        The function in the library; launches of one function share it.
    operators : tuple[str, ...]
        The user's operators it computes.
    device : str
    origin : {"tuned", "transferred", "heuristic", "fallback"}
        Where its schedule came from.
    rule : str
        The schedule rule.
    flops : float
        Arithmetic operations of a run, a multiply-add counted as two; 0 where shapes are dynamic.
    bytes : int
        Bytes of its arguments, each counted once: the traffic that no schedule avoids.
    """

    name: str
    operators: tuple[str, ...]
    device: str
    origin: str
    rule: str
    flops: float
    bytes: int


@dataclass(frozen=True)
class MemoryInfo:
    """Memory of one run, in bytes.

    Attributes
    ----------
    weights : int
        Constants, as stored.
    activations : int
        Storage that the planner gave to intermediate tensors.
    workspace : int
        The largest scratch space inside one kernel.
    inputs_outputs : int
        Inputs and outputs with known shapes.
    budget : int or None
        What the user allowed.
    """

    weights: int
    activations: int
    workspace: int
    inputs_outputs: int
    budget: int | None = None

    @property
    def peak(self) -> int:
        """Everything alive at once."""
        return self.weights + self.activations + self.workspace + self.inputs_outputs


@dataclass(frozen=True)
class CompileReport:
    """What a compilation decided, readable by people (:meth:`summary`) and programs.

    Attributes
    ----------
    model, target : str
    placements : tuple[Placement, ...]
        One per operator of the model.
    partitions : tuple[tuple[str, int], ...]
        Device and number of kernels of each maximal run on one device.
    copies : tuple[dict, ...]
        Tensors that cross devices.
    fusion_groups : tuple[dict, ...]
        Independent operators merged into one kernel, and refusals, with why.
    kernels : tuple[KernelInfo, ...]
        In execution order.
    layouts : dict[str, str]
        Data layout by kernel name, where it is not the model's own.
    memory : MemoryInfo
    warnings : tuple[str, ...]
    seconds : dict[str, float]
        Time of each compiler phase.
    """

    model: str
    target: str
    placements: tuple[Placement, ...]
    kernels: tuple[KernelInfo, ...]
    memory: MemoryInfo
    partitions: tuple[tuple[str, int], ...] = ()
    copies: tuple[dict[str, Any], ...] = ()
    fusion_groups: tuple[dict[str, Any], ...] = ()
    layouts: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def flops(self) -> float:
        """Arithmetic operations of one run with static shapes."""
        return sum(kernel.flops for kernel in self.kernels)

    def placement_line(self) -> str:
        """One line: operators per device, partitions, copies.

        Examples
        --------
        ``llvm 122/122 operators, 1 partition, 0 copies``
        """
        placed = [p for p in self.placements if p.device]
        parts = []
        for device in dict.fromkeys(p.device for p in placed):
            count = sum(p.device == device for p in placed)
            parts.append(f"{device} {count}/{len(placed)} operators")
        plural = "" if len(self.partitions) == 1 else "s"
        copies = "1 copy" if len(self.copies) == 1 else f"{len(self.copies)} copies"
        where = ", ".join(parts) or "no operators"
        return f"{where}, {len(self.partitions)} partition{plural}, {copies}"

    def summary(self) -> str:
        """A page of text: placement, kernels by origin, memory, warnings."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        out = io.StringIO()
        console = Console(file=out, width=100, no_color=True, highlight=False)
        console.print(Text(f"{self.model} on {self.target}"))
        console.print(Text(f"placement  {self.placement_line()}"))
        origins = [kernel.origin for kernel in self.kernels]
        counts = ", ".join(f"{origins.count(o)} {o}" for o in dict.fromkeys(origins))
        console.print(
            Text(f"kernels    {len(origins)} launches ({counts}), {self.flops / 1e9:.3f} GFLOP")
        )
        memory = self.memory
        console.print(
            Text(
                f"memory     {memory.peak / 2**20:.1f} MiB peak: "
                f"weights {memory.weights / 2**20:.1f}, "
                f"activations {memory.activations / 2**20:.1f}, "
                f"workspace {memory.workspace / 2**20:.1f}, "
                f"inputs and outputs {memory.inputs_outputs / 2**20:.1f}"
            )
        )
        if self.seconds:
            phases = ", ".join(f"{name} {s:.1f}" for name, s in self.seconds.items())
            console.print(Text(f"compile    {sum(self.seconds.values()):.1f} s ({phases})"))
        for warning in self.warnings:
            console.print(Text(f"warning    {warning}"))
        table = Table(title="largest kernels", title_justify="left", box=None, pad_edge=False)
        for column, width in (("kernel", 28), ("operators", 34), ("origin", None)):
            table.add_column(column, overflow="ellipsis", no_wrap=True, max_width=width)
        for column in ("MFLOP", "KiB"):
            table.add_column(column, justify="right", no_wrap=True)
        for kernel in sorted(self.kernels, key=lambda k: -k.flops)[:10]:
            table.add_row(
                Text(kernel.name),
                Text(", ".join(kernel.operators)),
                f"{kernel.origin}: {kernel.rule}",
                f"{kernel.flops / 1e6:.1f}",
                f"{kernel.bytes / 1024:.0f}",
            )
        console.print(table)
        return out.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary; :meth:`from_dict` reads it back."""
        fields = asdict(self)
        fields["memory"]["peak"] = self.memory.peak
        return fields

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> CompileReport:
        """The inverse of :meth:`to_dict`."""
        memory = {k: v for k, v in fields["memory"].items() if k != "peak"}
        return cls(
            **{
                **fields,
                "placements": tuple(Placement(**p) for p in fields["placements"]),
                "kernels": tuple(
                    KernelInfo(**{**k, "operators": tuple(k["operators"])})
                    for k in fields["kernels"]
                ),
                "memory": MemoryInfo(**memory),
                "partitions": tuple((d, n) for d, n in fields["partitions"]),
                "copies": tuple(fields["copies"]),
                "fusion_groups": tuple(fields["fusion_groups"]),
                "warnings": tuple(fields["warnings"]),
            }
        )
