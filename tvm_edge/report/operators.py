"""Work of the operators of the user's model, and its spread over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = [
    "FlopsBin",
    "FlopsDistribution",
    "OperatorInfo",
    "OperatorTypeInfo",
    "UnsupportedInfo",
    "distribute",
    "total_by_type",
]

# What the paper calls small: section 3.1 of EMDL'21.
_SMALL_FLOPS = 5e6
_SMALL_SHARE = 0.01

_EDGES = (0, 0.1e6, 0.5e6, 1e6, 5e6, 10e6, 50e6, 100e6, 500e6, 1e9)


@dataclass(frozen=True)
class OperatorInfo:
    """One operator of the user's model, as its definition says, not as kernels compute it.

    Attributes
    ----------
    name, op_type : str
        In the model.
    flops : int or None
        Arithmetic operations of a run: a multiply-add counts as two and covers a bias, products
        with padding count, an element-wise function counts as one per element, moving data counts
        nothing. ``None`` where the work depends on data, or nobody knows the operator.
    parameters : int
        Elements of its constant operands; shapes, axes, limits and the like are none.
    weight_bytes : int
        Bytes of all its constant operands. A weight that several operators share counts in each.
    input_bytes, output_bytes : int or None
        Bytes of the operands that a run computes, and of the results; ``None`` where a shape is
        only known after the run.
    device, reason : str
        As in :class:`~tvm_edge.report.Placement`.
    constant : bool
        It does not depend on the inputs and was evaluated at compile time: its numbers are 0.
    inputs : tuple[int, ...]
        Positions, in the report's `operators`, of those whose results it reads in a run, each
        once. Names would not do: models may use one twice.
    """

    name: str
    op_type: str
    flops: int | None
    parameters: int
    weight_bytes: int
    input_bytes: int | None
    output_bytes: int | None
    device: str
    reason: str
    constant: bool = False
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class OperatorTypeInfo:
    """All operators of one type that are not constant; what is not known counts as 0.

    Attributes
    ----------
    op_type : str
    count : int
    flops : int
    share : float
        Share of all operators' `flops`, 0 to 1.
    parameters, weight_bytes, input_bytes, output_bytes : int
    """

    op_type: str
    count: int
    flops: int
    share: float
    parameters: int
    weight_bytes: int
    input_bytes: int
    output_bytes: int


@dataclass(frozen=True)
class UnsupportedInfo:
    """An operator without an implementation.

    Attributes
    ----------
    op_type : str
        With its domain, unless that is ONNX's own.
    operators : tuple[str, ...]
        The nodes that use it in a form which has no implementation.
    reason : str
        Missing piece, and what to do.
    """

    op_type: str
    operators: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class FlopsBin:
    """Operators (or kernels) of `low` <= FLOPs < `high`; `high` is ``None`` in the last.

    Attributes
    ----------
    low : float
    high : float or None
    count : int
    flops : float
        FLOPs of all of them together.
    """

    low: float
    high: float | None
    count: int
    flops: float


@dataclass(frozen=True)
class FlopsDistribution:
    """Spread of a model's work over its operators: many small ones leave a GPU idle.

    Figure 2 of ParallelFusion (EMDL'21), "distribution and computational complexities of operators
    in DNNs". Section 3.1 there reads two facts off it for six networks: almost 60 % to 80 % of the
    operators are under 5 MFLOPs, and more than half have 1 % or less of their model's FLOPs.
    Those are the last two attributes.

    Attributes
    ----------
    of : {"operators", "kernels"}
    bins : tuple[FlopsBin, ...]
        Ascending and without gaps; counts and FLOPs sum to the totals.
    count : int
    flops : float
    under_5_mflop : float
        Share of `count` under 5 MFLOP, 0 to 1.
    at_most_1_percent : float
        Share of `count` with 1 % or less of `flops` each, 0 to 1.
    """

    of: str
    bins: tuple[FlopsBin, ...]
    count: int
    flops: float
    under_5_mflop: float
    at_most_1_percent: float


def distribute(of: str, flops: Iterable[float]) -> FlopsDistribution:
    """The distribution of some FLOPs over bins with the edges 0.1, 0.5, 1, 5, 10, … MFLOP."""
    values = list(flops)
    total = sum(values)
    bins = []
    for low, high in zip(_EDGES, (*_EDGES[1:], None), strict=True):
        inside = [v for v in values if v >= low and (high is None or v < high)]
        bins.append(FlopsBin(low, high, len(inside), sum(inside)))
    count = len(values) or 1
    return FlopsDistribution(
        of,
        tuple(bins),
        len(values),
        total,
        sum(v < _SMALL_FLOPS for v in values) / count,
        sum(v <= _SMALL_SHARE * total for v in values) / count,
    )


def total_by_type(operators: Sequence[OperatorInfo]) -> tuple[OperatorTypeInfo, ...]:
    """One row per operator type, most FLOPs first."""
    types: dict[str, list[OperatorInfo]] = {}
    for operator in operators:
        if operator.constant:
            continue
        types.setdefault(operator.op_type, []).append(operator)
    total = sum(o.flops or 0 for o in operators) or 1
    rows = []
    for op_type, members in types.items():
        flops = sum(o.flops or 0 for o in members)
        rows.append(
            OperatorTypeInfo(
                op_type,
                len(members),
                flops,
                flops / total,
                sum(o.parameters for o in members),
                sum(o.weight_bytes for o in members),
                sum(o.input_bytes or 0 for o in members),
                sum(o.output_bytes or 0 for o in members),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.flops, -row.count, row.op_type)))
