"""Control flow: loops, sequences, and calls that a Relax module brings along.

Loops are written out before the import where their number of steps is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tvm_edge.ops.converter import Attributes, Converter
from tvm_edge.ops.flops import no_flops
from tvm_edge.ops.registry import PERFORMS, register, relax_names

__all__: list[str] = []


def _refused(operator: str) -> Converter:
    def convert(
        _bb: relax.BlockBuilder, _inputs: Sequence[relax.Expr], _attrs: Attributes
    ) -> relax.Expr:
        raise NotImplementedError(
            f"{operator} of a number of steps that only the run tells; give it a constant one"
        )

    return convert


register("Loop", convert=_refused("Loop"), forming=(0, 1))
register("Scan", convert=_refused("Scan"))
register(
    *"""
    ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct
    SequenceEmpty SequenceErase SequenceInsert SequenceLength SplitToSequence
    """.split(),
    flops=no_flops,
)

# They are where the module puts them.
register(
    *relax_names("call_dps_packed call_inplace_packed call_pure_packed call_tir call_tir_inplace"),
    gpu=PERFORMS,
)
