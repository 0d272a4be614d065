"""State of a loop whose number of steps only the run tells.

Until kernels are scheduled and memory is planned, ``main`` has one step of such a loop::

    state = tvm_edge.loop_state(initial, carrier)
    result = if goes_on: { ... new = ...; next = tvm_edge.loop_next(state, new); (next,) }
             else: { (state,) }

so that passes treat the body as the branch that it is. ``OutlineLoops`` then makes a function of
the step, which is called until it does not go on.
"""

from __future__ import annotations

from tvm import relax

from tvm_edge.ops.flops import no_flops
from tvm_edge.ops.registry import PERFORMS, call, register
from tvm_edge.relay_passes.ir.loops import LOOP_NEXT, LOOP_STATE
from tvm_edge.relay_passes.ir.vdevices import vdevice_of

__all__ = ["loop_next", "loop_state"]


def loop_state(
    initial: relax.Expr, carrier: relax.Expr, number: int, ndim: int | None = None
) -> relax.Call:
    """Stand for a tensor that each step of a loop makes anew.

    Parameters
    ----------
    initial : relax.Expr
        Its value before the first step.
    carrier : relax.Expr
        A tensor that carries the device for an initial value that is constant.
    number : int
        One for each state: those of equal initial values are still two.
    ndim : int, optional
        The rank, where the shape is another after a step; -1 if the rank is, too.
    """
    kept = {} if ndim is None else {"ndim": ndim}
    return call(LOOP_STATE, [initial, carrier], number=number, **kept)


def loop_next(state: relax.Var, value: relax.Expr) -> relax.Call:
    """Make `value` the `state` of the next step."""
    return call(LOOP_NEXT, [state, value])


def _state_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    ty = call.args[0].ty
    device = vdevice_of(ty) or vdevice_of(call.args[1].ty)
    if "ndim" in call.attrs:
        return relax.TensorType(None, ty.dtype, device, int(call.attrs["ndim"]))
    return relax.TensorType(ty.shape, ty.dtype, device)


def _next_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    return call.args[0].ty


register(LOOP_STATE, infer_type=_state_type, gpu=PERFORMS, flops=no_flops)
register(LOOP_NEXT, infer_type=_next_type, gpu=PERFORMS, flops=no_flops)
