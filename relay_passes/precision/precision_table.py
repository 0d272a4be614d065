"""Which operators may work on float16 tensors. All others stay float32.

Not in the table, and why: softmax, exponentials, logarithms and powers, squares and sums, whose
results leave the range of float16; the statistics of normalisations; quotients by what is computed;
whatever finds places rather than values (sorts, arg-maxima, suppression, decoding of boxes,
samplers), as the last bits decide there.
"""

from __future__ import annotations

__all__ = ["FOLLOWING", "LARGEST", "PRODUCTS", "SMALLEST", "WITH_CONSTANT"]

LARGEST = 65504.0
"""The largest finite float16."""

SMALLEST = 2.0**-14
"""The smallest normal one; below it digits are lost."""

PRODUCTS = frozenset(
    f"relax.{name}"
    for name in (
        "matmul nn.conv1d nn.conv1d_transpose nn.conv2d nn.conv2d_transpose nn.conv3d "
        "nn.conv3d_transpose"
    ).split()
)
"""Operators worth a conversion of their operands: they do the work and have the weights."""

WITH_CONSTANT = frozenset(
    f"relax.{name}" for name in "add divide maximum minimum multiply subtract".split()
)
"""Those of :data:`FOLLOWING` with constants that stay float32 where they are shared by many
elements: biases and scales. They are some KiB of a model, and rounded they would be a third of its
error (``benchmarks/models/precision.py``).
"""

FOLLOWING = frozenset(
    f"relax.{name}"
    for name in (
        # element by element; a divisor has to be constant
        "abs add clip divide maximum minimum multiply negative nn.gelu nn.gelu_tanh nn.leakyrelu "
        "nn.prelu nn.relu nn.silu sigmoid subtract tanh where "
        # over windows and axes, added up in float32
        "max mean min nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d "
        "nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.max_pool1d nn.max_pool2d nn.max_pool3d "
        # moves; a resize finds its places in float32
        "broadcast_to concat expand_dims flatten flip image.resize2d nn.batch_flatten nn.pad "
        "nn.pixel_shuffle permute_dims repeat reshape split squeeze stack strided_slice take tile"
    ).split()
)
"""Operators between products: float16 where what they read is that."""
