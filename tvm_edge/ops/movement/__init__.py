"""Operators that move elements, make them from nothing, or view them in another shape."""

from __future__ import annotations

from tvm_edge.ops.flops import no_flops
from tvm_edge.ops.movement import (
    converters,
    gather,
    run_time_pads,
    run_time_shapes,
    scatter,
    views,
)
from tvm_edge.ops.movement.concat import CONCAT, lower_concat
from tvm_edge.ops.movement.padding import pad, pad_image
from tvm_edge.ops.movement.run_time_shapes import first_of
from tvm_edge.ops.registry import (
    FOLLOWS,
    PERFORMS,
    PERFORMS_STATIC,
    Fitness,
    register,
    relax_names,
)

__all__ = ["CONCAT"]

register(
    *"""
    Compress Concat Constant ConstantOfShape DepthToSpace Expand EyeLike Flatten Gather
    GatherElements GatherND Identity OneHot Pad Range Reshape ReverseSequence Scatter
    ScatterElements ScatterND Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze
    """.split(),
    flops=no_flops,
)
register(
    *"Concat Flatten Gather Identity Reshape Slice Split Squeeze Transpose Unsqueeze".split(),
    stored_types=True,
)
register("CenterCropPad", forming=(1,))
register("Constant", convert=converters.constant)
register("ConstantOfShape", convert=run_time_shapes.constant_of_shape, forming=(0,))
register("Expand", convert=run_time_shapes.expand, forming=(1,))
register("EyeLike", convert=converters.eye_like)
register("Gather", convert=converters.gather)
register("OneHot", convert=converters.one_hot, forming=(1, 2), settings=(2,))
register(
    "Pad", convert=first_of(pad_image, run_time_pads.pad, pad), forming=(1, 2, 3), settings=(2,)
)
register("Range", convert=run_time_shapes.range_of, forming=(0, 1, 2), settings=(0, 1, 2))
register("Reshape", convert=run_time_shapes.reshape)
register("Tile", convert=run_time_shapes.tile)
register(*"Reshape Split Squeeze Tile Trilu Unsqueeze".split(), forming=(1,))
register("ReverseSequence", convert=converters.reverse_sequence)
register("Slice", convert=run_time_shapes.slice_of, forming=(1, 2, 3, 4))
register("SpaceToDepth", convert=converters.space_to_depth)
register("Split", convert=first_of(run_time_shapes.split, converters.split))
register("Squeeze", convert=run_time_shapes.squeeze)
register("TensorScatter", convert=scatter.tensor_scatter)

register(
    *relax_names(
        """
        arange broadcast_to concat expand_dims eye eye_like flatten flip full full_like
        gather_elements gather_nd index_tensor layout_transform meshgrid nn.batch_flatten nn.pad
        nn.pixel_shuffle one_hot ones ones_like permute_dims repeat reshape reverse_sequence
        slice_scatter split squeeze stack strided_slice take tile tril triu zeros zeros_like
        """
    ),
    gpu=PERFORMS,
    flops=no_flops,
)
register(
    *relax_names(
        "broadcast_to concat expand_dims flatten flip nn.batch_flatten nn.pad nn.pixel_shuffle "
        "permute_dims repeat reshape split squeeze stack strided_slice take tile"
    ),
    float16=FOLLOWS,
)
register("relax.concat", lower=lower_concat, blocks="image")
register(
    "relax.dynamic_strided_slice", gpu=Fitness(impossible="the shape of its result depends on data")
)
register(*relax_names("gather_elements gather_nd"), legalize=gather.bounded_gather)
register("relax.index_put", gpu=PERFORMS)
register("relax.memory.view", flops=no_flops)
register(*relax_names("permute_dims reshape split"), blocks="regroups")
register("relax.reshape", legalize=views.legalize_reshape)
register(
    "relax.scatter_elements",
    lower=scatter.lower_scatter_elements,
    gpu=PERFORMS_STATIC,
    flops=no_flops,
)
register("relax.scatter_nd", lower=scatter.lower_scatter_nd, gpu=PERFORMS_STATIC, flops=no_flops)
register("relax.take", legalize=gather.clipped_take)
