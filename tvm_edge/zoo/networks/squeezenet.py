"""SqueezeNet: Iandola et al., arXiv:1602.07360."""

from __future__ import annotations

from tvm_edge.zoo.calibration import RELU, Scale
from tvm_edge.zoo.graph import Graph, Tensor
from tvm_edge.zoo.layers import conv, global_pool, max_pool, relu

__all__ = ["squeezenet1_0"]

# Rectified and averaged over the map, these make logits of about unit scale.
_SCORES = Scale(deviation=4.0, mean=1.0, spread=1.0)


def squeezenet1_0(g: Graph) -> None:
    """SqueezeNet 1.0 (table 1), the convolutions with bias and no normalisation.

    As in the released Caffe model and torchvision the pools keep an overhanging last window, and
    the classifying convolution is rectified before it is averaged.
    """
    x = conv(g.data, g.channels(96), 7, name="conv1", stride=2, bias=RELU)
    x = relu(x, name="conv1/relu")
    x = max_pool(x, 3, name="pool1", stride=2, ceil_mode=True)
    for index, squeeze in ((2, 16), (3, 16), (4, 32)):
        x = _fire(x, index, squeeze)
    x = max_pool(x, 3, name="pool4", stride=2, ceil_mode=True)
    for index, squeeze in ((5, 32), (6, 48), (7, 48), (8, 64)):
        x = _fire(x, index, squeeze)
    x = max_pool(x, 3, name="pool8", stride=2, ceil_mode=True)
    x = _fire(x, 9, 64)
    x = relu(conv(x, 1000, 1, name="conv10", bias=_SCORES), name="conv10/relu")
    g.output("logits", global_pool(x), (g.batch, 1000))


def _fire(x: Tensor, index: int, squeeze: int) -> Tensor:
    """1x1 to `squeeze` channels, then 1x1 and 3x3 to four times as many each, side by side."""
    g = x.graph
    with g.scope(f"fire{index}"):
        x = relu(conv(x, g.channels(squeeze), 1, name="squeeze", bias=RELU), name="squeeze/relu")
        expanded = []
        for kernel in (1, 3):
            name = f"expand{kernel}x{kernel}"
            y = conv(x, g.channels(4 * squeeze), kernel, name=name, pads=kernel // 2, bias=RELU)
            expanded.append(relu(y, name=f"{name}/relu"))
        return g.op("Concat", *expanded, name="concat", axis=1)
