"""Spread of a network's work over its operators.

EMDL'21, Table 1 and Figure 2: FLOPs and parameters of its six networks, the share of their
operators under 5 MFLOP, and of those with 1 % of their network's work or less; operators as the
model has them, and as kernels after fusion. Nothing runs and no device is needed
(``tvm_edge.analyze``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Parser, save_json
from benchmarks.fusion.workloads import NETWORKS

__all__ = ["complexity"]


def complexity(network: str) -> dict[str, Any]:
    """Analyse a network of the zoo.

    Returns
    -------
    dict
        ``flops``, ``parameters``, ``operators`` (FLOPs by name), and ``spread``: by ``operators``
        and ``kernels`` their ``count``, ``under_5_mflop`` and ``at_most_1_percent``.
    """
    import tvm_edge

    report = tvm_edge.analyze(f"zoo:{network}", "llvm")
    spreads = {of: report.flops_distribution(of) for of in ("operators", "kernels")}
    return {
        "flops": report.flops,
        "parameters": sum(o.parameters for o in report.operators if not o.constant),
        "operators": {o.name: o.flops for o in report.operators if o.flops},
        "spread": {
            of: {
                "count": spread.count,
                "under_5_mflop": spread.under_5_mflop,
                "at_most_1_percent": spread.at_most_1_percent,
            }
            for of, spread in spreads.items()
        },
    }


def main(arguments: Sequence[str]) -> None:
    """Analyse and print."""
    parser = Parser("operator_complexity", __doc__)
    parser.shared(networks=NETWORKS, json=None)
    options = parser.parse_args(arguments)
    found = {}
    for name in options.networks:
        found[name] = row = complexity(name)
        shares = "; ".join(
            f"{spread['count']} {of}: {spread['under_5_mflop']:.0%} under 5 MFLOP, "
            f"{spread['at_most_1_percent']:.0%} with 1 % of the work or less"
            for of, spread in row["spread"].items()
        )
        print(
            f"{name}: {row['flops'] / 1e6:,.0f} MFLOP, {row['parameters'] / 1e6:.2f} M parameters; "
            f"{shares}",
            flush=True,
        )
    save_json(options.json, {"machine": describe_machine(), "networks": found})
