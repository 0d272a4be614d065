"""Control flow: sequences, refusals, and calls that a Relax module brings along."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from tvm_edge.ops.flops import no_flops
from tvm_edge.ops.kernel_site import KernelSite
from tvm_edge.ops.registry import PERFORMS, Fitness, call, register, relax_names
from tvm_edge.schedules.emit import function, require

__all__ = ["refuse"]

_REFUSE = "tvm_edge.refuse"


def refuse(ty: relax.TensorType, what: str, condition: relax.Expr) -> relax.Call:
    """Stand for a tensor that cannot be calculated: a run that comes here ends with an error.

    Parameters
    ----------
    ty : relax.TensorType
        Its type; lengths that only the run tells become 0.
    what : str
        What the run came to, for the message.
    condition : relax.Expr
        What led there, a bool: the value would be folded if it depended on nothing.
    """
    shape = list(ty.shape) if ty.shape is not None else [0] * ty.ndim
    known = [int(length) if isinstance(length, tirx.IntImm) else 0 for length in shape]
    return call(_REFUSE, [condition], shape=known, dtype=str(ty.dtype), what=what)


def _refusal_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    shape = [int(length) for length in call.attrs["shape"]]
    return relax.TensorType(shape, str(call.attrs["dtype"]))


def _lower_refusal(site: KernelSite, call: relax.Call) -> relax.Expr:
    def body(_condition: Any, _result: Any) -> None:
        require(tirx.const(False, "bool"), str(call.attrs["what"]))

    shape = [int(length) for length in call.attrs["shape"]]
    kernel = function([([], "bool")], [(shape, str(call.attrs["dtype"]))], body)
    return site.run(kernel, "refuse", list(call.args))[0]


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

register(
    _REFUSE,
    infer_type=_refusal_type,
    lower=_lower_refusal,
    gpu=Fitness(impossible="it ends the run, on the host"),
    flops=no_flops,
)
