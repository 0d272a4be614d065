"""Loops, which are written out before the import where their steps are known."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tvm_edge.frontend.operators.base import Attributes, Converter

__all__ = ["CONTROL"]


def _refused(operator: str) -> Converter:
    def convert(
        _bb: relax.BlockBuilder, _inputs: Sequence[relax.Expr], _attrs: Attributes
    ) -> relax.Expr:
        raise NotImplementedError(
            f"{operator} of a number of steps that only the run tells; give it a constant one"
        )

    return convert


CONTROL: dict[str, Converter] = {"Loop": _refused("Loop"), "Scan": _refused("Scan")}
