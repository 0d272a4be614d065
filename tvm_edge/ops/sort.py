"""Sorting of segments of different lengths."""

from __future__ import annotations

from tvm import relax

from tvm_edge.ops import registry

__all__ = ["SEGMENTED_ARGSORT", "segmented_argsort"]

SEGMENTED_ARGSORT = "tvm_edge.segmented_argsort"


def segmented_argsort(
    data: relax.Expr, offsets: relax.Expr, *, descending: bool = False, dtype: str = "int32"
) -> relax.Call:
    """Stable argsort of each segment of a flat tensor (ICPP'19 §3.1.1, Figure 2).

    How long it takes depends on the number of elements and not on how they are shared out.

    Parameters
    ----------
    data : relax.Expr
        ``(n,)``, numbers of any type. NaN comes last, also in descending order.
    offsets : relax.Expr
        ``(segments + 1,)``, int32 or int64, from 0 to `n` without decrease: segment ``s`` is
        ``data[offsets[s]:offsets[s + 1]]``. Where they are an input of the model, ``run`` checks
        them; a constant is checked at compile time.
    descending : bool
        Whether greater elements come first; equal ones stay in their order.
    dtype : {"int32", "int64"}
        Of the result.

    Returns
    -------
    relax.Call
        ``(n,)``: positions in `data`, so that ``data[result]`` has every segment in order.
        Elements before the first offset and behind the last keep their place.
    """
    return registry.call(SEGMENTED_ARGSORT, [data, offsets], descending=descending, dtype=dtype)


def _infer_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    data, offsets = (arg.ty for arg in call.args)
    if data.ndim != 1 or offsets.ndim != 1:
        raise ValueError(
            f"{SEGMENTED_ARGSORT}: data and offsets must have one dimension, "
            f"not {data.ndim} and {offsets.ndim}"
        )
    if str(offsets.dtype) not in ("int32", "int64"):
        raise ValueError(f"{SEGMENTED_ARGSORT}: offsets must be int32 or int64")
    dtype = str(call.attrs["dtype"])
    if dtype not in ("int32", "int64"):
        raise ValueError(f"{SEGMENTED_ARGSORT}: indices are int32 or int64, not {dtype}")
    if data.shape is None:
        return relax.TensorType(dtype=dtype, vdevice=data.vdevice, ndim=1)
    return relax.TensorType(data.shape, dtype, data.vdevice)


registry.register(SEGMENTED_ARGSORT, _infer_type)
