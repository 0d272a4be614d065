"""Losses and gradients, for which nothing here is made."""

from __future__ import annotations

from tvm_edge.ops.registry import PERFORMS, Fitness, register, relax_names

__all__: list[str] = []

register(*relax_names("nn.cross_entropy_with_logits nn.nll_loss"), gpu=PERFORMS)
register(
    *relax_names(
        "grad.avg_pool2d_backward grad.max_pool2d_backward grad.nll_loss_backward "
        "grad.take_backward"
    ),
    gpu=Fitness(left_out="it is of training, for which nothing here is made"),
)
