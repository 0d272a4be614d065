"""Convolutions and networks to tune, chosen before anything was tuned.

Spaces: of the convolutions of six networks, on an H200, those of 500 to 800 configurations are
the smallest that may be measured whole; ten of them, no two of the same window, stride and number
of filters.
"""

from __future__ import annotations

from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = ["CPU_NETWORKS", "GPU_NETWORKS", "SPACES", "describe"]

GPU_NETWORKS = ("resnet50_v1", "mobilenet_v2")
CPU_NETWORKS = ("resnet50_v1", "mobilenet_v1", "squeezenet1_0")


def _conv(
    channels: int, size: int, filters: int, kernel: tuple[int, int] = (1, 1), stride: int = 1
) -> ConvWorkload:
    """Padded to keep the size, unless it is strided."""
    y, x = (k // 2 if stride == 1 else 0 for k in kernel)
    return ConvWorkload(
        1, channels, size, size, filters, kernel, (stride, stride), (y, x, y, x), (1, 1), 1
    )


SPACES = (
    _conv(144, 56, 24),  # mobilenet_v2
    _conv(64, 56, 64),  # resnet50_v1
    _conv(64, 56, 256),  # resnet50_v1
    _conv(96, 14, 576),  # mobilenet_v2
    _conv(64, 73, 80),  # inception_v3
    _conv(128, 7, 32, (3, 3)),  # densenet121; Winograd's algorithm too
    _conv(192, 35, 32),  # inception_v3
    _conv(48, 35, 64, (5, 5)),  # inception_v3
    _conv(128, 17, 192, (7, 1)),  # inception_v3
    _conv(192, 17, 320, (3, 3), 2),  # inception_v3
)


def describe(workload: ConvWorkload) -> str:
    """Channels, size, filters and window, as tables have them."""
    kernel = "×".join(map(str, workload.kernel))
    return f"{workload.channels}×{workload.height}² to {workload.filters}, {kernel}"
