"""The result of a comparison: an error for each node of the model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tvm_edge.report.page.table_page import write_table_page
from tvm_edge.report.page.tables import Column, Table

__all__ = ["Comparison", "NodeError", "OutputBits", "PassTrial", "error_of"]

FLOAT16_MAX = 65504.0
"""The largest number that float16 holds."""

OVERFLOW = "float16 overflow: "
"""Begin the remark on a node whose result float16 cannot hold."""


def error_of(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference, relative to the largest expected value.

    Infinite where shapes differ, or a number is not finite in one and is in the other. Of integers
    of 8 bits the first step does not count: a tie may be rounded to either side.
    """
    if actual.shape != expected.shape:
        return float("inf")
    if not expected.size:
        return 0.0
    ours, theirs = actual.astype("float64"), expected.astype("float64")
    finite = np.isfinite(theirs)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    if not same[~finite].all() or not np.isfinite(ours[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    scale = float(np.abs(theirs[finite]).max())
    step = 1.0 if expected.dtype in (np.int8, np.uint8) else 0.0
    difference = float(np.abs(ours[finite] - theirs[finite]).max())
    return max(difference - step, 0.0) / (scale or 1.0)


@dataclass(frozen=True)
class NodeError:
    """A node of the model, and how far its result is from the reference's.

    Attributes
    ----------
    node, op_type : str
    kernel : str
        The kernel that computes it; empty for a view and for what was evaluated before the run.
    rule : str
        The schedule rule of that kernel.
    tensor : str
        The result that is compared: of several the one that is furthest off.
    error : float or None
        Largest difference, relative to the largest expected value. ``None`` for a result inside of
        a kernel.
    alone : float or None
        Error of the node by itself on the reference's inputs. ``None`` where it was not run.
    made : float or None
        Error of its whole kernel, from the reference on the same inputs, which are ours.
    low, high : float or None
        Range of the reference.
    found : {"", "made here", "inherited"}
        Origin of an error over the tolerance.
    remark : str
        Overflows, NaN, and why a node was not run alone.
    """

    node: str
    op_type: str
    kernel: str = ""
    rule: str = ""
    tensor: str = ""
    error: float | None = None
    alone: float | None = None
    made: float | None = None
    low: float | None = None
    high: float | None = None
    found: str = ""
    remark: str = ""


@dataclass(frozen=True)
class OutputBits:
    """An output of the deployed build beside that of the build that hands out tensors.

    Attributes
    ----------
    name : str
    error : float
        Error of the deployed build, from the reference.
    same : bool
        Whether both builds return the same bits.
    difference : float
        Between the two builds, relative to the largest value.
    """

    name: str
    error: float
    same: bool
    difference: float = 0.0


@dataclass(frozen=True)
class PassTrial:
    """A compilation without one pass.

    Attributes
    ----------
    name : str
        The pass, or ``"Winograd"``.
    error : float or None
        ``None`` where it could not be compiled without.
    gone : bool
        Whether the error is within the tolerance without it.
    """

    name: str
    error: float | None
    gone: bool


@dataclass(frozen=True)
class Comparison:
    """Errors of a compiled model, node by node.

    Attributes
    ----------
    model, target, precision, reference : str
    tolerance : float
    nodes : tuple of NodeError
        In the order of the model.
    outputs : tuple of OutputBits
    other_kernels : tuple of str
        Kernels of the deployed build that the build that hands out tensors does not have.
    passes : tuple of PassTrial
        Trials of ``bisect_passes=True``, where there is an error to look for.
    dumped : tuple of str
        Files that were written.
    notes : tuple of str
    """

    model: str
    target: str
    precision: str
    reference: str
    tolerance: float
    nodes: tuple[NodeError, ...]
    outputs: tuple[OutputBits, ...]
    other_kernels: tuple[str, ...] = ()
    passes: tuple[PassTrial, ...] = ()
    dumped: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def within(self) -> bool:
        """Return whether every output of the deployed build is within the tolerance."""
        return all(output.error <= self.tolerance for output in self.outputs)

    @property
    def first(self) -> NodeError | None:
        """The first node over the tolerance."""
        return next((n for n in self.nodes if _over(n.error, self.tolerance)), None)

    @property
    def culprit(self) -> NodeError | None:
        """The first node that makes an error over the tolerance.

        Of the nodes of a kernel the one that is wrong by itself too, else the kernel's last.
        """
        first = next((n for n in self.nodes if n.found == "made here"), None)
        if first is None:
            return None
        mates = [n for n in self.nodes if first.kernel and n.kernel == first.kernel]
        by_itself = (n for n in mates if _over(n.alone, self.tolerance) and n.remark)
        return next(by_itself, None) or next(
            (n for n in mates if _over(n.alone, self.tolerance)), first
        )

    def verdict(self) -> list[str]:
        """Return the findings as sentences."""
        lines = []
        first, culprit = self.first, self.culprit
        worst = max((o.error for o in self.outputs), default=0.0)
        said = "within" if self.within else "over"
        lines.append(f"outputs: {worst:.2g} off at most, {said} the tolerance {self.tolerance:.2g}")
        if first is not None:
            where = "made there" if first is culprit else first.found or "accumulated"
            lines.append(
                f"first over the tolerance: {first.node} ({first.op_type}), {first.error:.2g}, "
                f"{where}"
            )
        if culprit is not None and culprit is not first:
            alone = culprit.alone if culprit.error is None else culprit.error
            lines.append(f"made at: {culprit.node} ({culprit.op_type}), {alone:.2g}")
        if culprit is not None and culprit.kernel:
            lines.append(f"kernel: {culprit.kernel} (rule {culprit.rule})")
            if not _over(culprit.alone, self.tolerance):
                lines.append(
                    f"its nodes are right one by one ({_number(culprit.alone)}): the kernel as a "
                    "whole is not"
                )
        gone = [trial.name for trial in self.passes if trial.gone]
        if gone:
            lines.append(f"the error is gone without: {', '.join(gone)}")
        elif self.passes:
            lines.append("the error stays without any of the passes that can be left out")
        differing = [output.name for output in self.outputs if not output.same]
        if differing:
            lines.append(
                "the build that hands out tensors differs from the deployed one in "
                f"{', '.join(differing)} (by {max(o.difference for o in self.outputs):.2g})"
            )
            if self.other_kernels:
                lines.append(f"kernels that it does not have: {', '.join(self.other_kernels)}")
        else:
            lines.append("the build that hands out tensors returns the deployed build's bits")
        lines += [f"{n.node} ({n.op_type}): {n.remark}" for n in self.nodes if n.remark]
        overflowed = [n.node for n in self.nodes if OVERFLOW in n.remark]
        if overflowed:
            lines.append(f"in float32 with: precision_exceptions={overflowed}")
        return [*lines, *self.notes, *(f"wrote {path}" for path in self.dumped)]

    def table(self, most: int | None = None) -> str:
        """The nodes as text; with `most` those that are furthest off."""
        rows = self.shown(most)
        cells = [_HEADINGS, *(_cells(node) for node in rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADINGS))]
        lines = [
            "  ".join(
                text.rjust(width) if column in _NUMBERS else text.ljust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
        left = len(self.nodes) - len(rows)
        return "\n".join([*lines, *([f"… and {left} more nodes"] if left else [])])

    def shown(self, most: int | None) -> list[NodeError]:
        """Nodes to show: all, or the `most` worst in the order of the model."""
        if most is None or most >= len(self.nodes):
            return list(self.nodes)
        worst = sorted(range(len(self.nodes)), key=lambda i: -max(_known(self.nodes[i])))[:most]
        return [self.nodes[index] for index in sorted(worst)]

    def text(self, most: int | None = None) -> str:
        """Heading, table and verdict; arguments as of :meth:`table`."""
        head = f"{self.model} on {self.target}, {self.precision}, beside {self.reference}"
        return "\n".join([head, "", self.table(most), "", *self.verdict()])

    def __str__(self) -> str:
        return self.text()

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary."""
        first, culprit = self.first, self.culprit
        return {
            **asdict(self),
            "within": self.within,
            "first": first.node if first else None,
            "made_at": culprit.node if culprit else None,
            "kernel": culprit.kernel if culprit else None,
            "gone_without": [trial.name for trial in self.passes if trial.gone],
            "verdict": self.verdict(),
        }

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the comparison as one page that needs nothing else, and return its path.

        Raises
        ------
        InputError
            The file cannot be written.
        """
        worst = max((output.error for output in self.outputs), default=0.0)
        culprit = self.culprit
        figures = [
            ("Error of the outputs", f"{worst:.2g}", "within" if self.within else "over"),
            ("Tolerance", f"{self.tolerance:.2g}", "of the largest value"),
            ("Nodes", f"{len(self.nodes)}", ""),
            ("Made at", culprit.node if culprit else "–", culprit.kernel if culprit else ""),
        ]
        columns = [Column(text, at in _NUMBERS) for at, text in enumerate(_HEADINGS)]
        nodes = Table(
            "nodes-table", "Nodes", columns, [_cells(node) for node in self.nodes], sortable=True
        )
        outputs = Table(
            "outputs-table",
            "Outputs",
            [Column("output"), Column("error", True), Column("bits")],
            [(o.name, _number(o.error), "same" if o.same else "differ") for o in self.outputs],
        )
        tables = [("Outputs of the deployed build", outputs), ("Nodes", nodes)]
        if self.passes:
            trials = Table(
                "passes-table",
                "Passes",
                [Column("without"), Column("error", True), Column("result")],
                [(t.name, _number(t.error), "gone" if t.gone else "stays") for t in self.passes],
            )
            tables.append(("Without a pass", trials))
        title = f"{self.model} beside {self.reference}"
        return write_table_page(
            path, title, f"{self.target}, {self.precision}", figures, self.verdict(), tables
        )


_HEADINGS = ("node", "operator", "error", "alone", "range", "found", "kernel")
_NUMBERS = (2, 3)


def _cells(node: NodeError) -> Sequence[str]:
    span = "" if node.low is None else f"{node.low:.3g} … {node.high:.3g}"
    inside = "inside" if node.error is None and node.kernel else _number(node.error)
    return (
        node.node,
        node.op_type,
        inside,
        _number(node.alone),
        span,
        node.found or ("!" if node.remark else ""),
        node.kernel,
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}" if value else "0"


def _known(node: NodeError) -> list[float]:
    return [value for value in (node.error, node.alone, 0.0) if value is not None]


def _over(error: float | None, tolerance: float) -> bool:
    return error is not None and error > tolerance
