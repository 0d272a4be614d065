"""Limits of models: constant indices in range, tensors that a memory can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_edge.errors import InvalidModelError

__all__ = ["refuse_indices", "refuse_unreal_tensors"]

# Elements of one tensor. Far above any memory; far below where the virtual machine, which computes
# sizes in 64 bits, allocates less than kernels write.
_LARGEST = 1 << 44

# Dimensions of one tensor; NumPy's limit until version 2. TVM needs minutes to fuse 255 loops.
_MOST_DIMENSIONS = 32

_ALONG_AXIS = ("Gather", "GatherElements", "Scatter", "ScatterElements")
_BY_TUPLE = ("GatherND", "ScatterND")


def refuse_indices(
    op_type: str, inputs: Sequence[relax.Expr | None], attrs: Mapping[str, Any]
) -> None:
    """Look at constant indices; those computed in a run are kept in range by the kernels.

    Raises
    ------
    IndexError
        One is outside its axis.
    """
    if op_type not in _ALONG_AXIS and op_type not in _BY_TUPLE:
        return
    data, indices = inputs[:2]
    if data is None or not isinstance(indices, tvm.ir.GenericConst):
        return
    values = indices.value.numpy()
    if not isinstance(data.ty, relax.TensorType) or data.ty.shape is None or not values.size:
        return
    shape = list(data.ty.shape)
    if op_type in _BY_TUPLE:
        start = int(attrs.get("batch_dims", 0))
        lengths = shape[start : start + values.shape[-1]]
    else:
        lengths = [shape[int(attrs.get("axis", 0))]]
    if not all(isinstance(length, tirx.IntImm) for length in lengths):
        return
    limits = np.asarray([int(length) for length in lengths], "int64")
    if ((values < -limits) | (values >= limits)).any():
        raise IndexError(
            f"an index between {values.min()} and {values.max()} is outside an axis of length "
            f"{', '.join(map(str, limits))}"
        )


def refuse_unreal_tensors(module: tvm.IRModule) -> None:
    """Refuse a model of which one tensor exceeds any memory, or has too many dimensions.

    Raises
    ------
    InvalidModelError"""
    main = module["main"]
    bound = [binding.var for block in main.body.blocks for binding in block.bindings]
    for var in (*main.params, *bound):
        if not isinstance(var.ty, relax.TensorType) or var.ty.shape is None:
            continue
        if len(var.ty.shape) > _MOST_DIMENSIONS:
            raise InvalidModelError(
                f"a tensor of the model has {len(var.ty.shape)} dimensions, and at most "
                f"{_MOST_DIMENSIONS} are supported; export the model again"
            )
        lengths = [int(d) for d in var.ty.shape if isinstance(d, tirx.IntImm)]
        if math.prod(lengths) > _LARGEST:
            raise InvalidModelError(
                f"a tensor of the model has the shape {tuple(lengths)}, which no memory holds; "
                "export the model again, or give smaller input_shapes"
            )
