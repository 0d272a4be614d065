"""Which convolutions go by sub-groups, and with which tile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tvm_edge.hardware.presets import PRESETS
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.algorithm import choose_config, config_space
from tvm_edge.schedules.gpu.subgroup_tile import choose_sub_group_tile

HD505 = PRESETS["intel-hd505"].spec


def workload(**changes: Any) -> ConvWorkload:
    """A 3x3 convolution of ResNet's, with changes."""
    usual = ConvWorkload(1, 64, 28, 28, 64, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1)
    return replace(usual, **changes)


def test_a_cpu_keeps_its_own_schedules() -> None:
    """Drivers of CPUs have sub-groups too, which gain nothing there."""
    assert choose_config(workload(), HD505).algorithm == "subgroup"
    assert choose_config(workload(), replace(HD505, on_cpu=True)).algorithm != "subgroup"


@pytest.mark.parametrize(
    "own",
    [
        workload(),
        workload(
            channels=3, height=224, width=224, kernel=(7, 7), strides=(2, 2), padding=(3,) * 4
        ),
        workload(channels=512, filters=512, height=7, width=7),
        workload(kernel=(1, 1), padding=(0,) * 4, filters=256),
        workload(groups=64),
        workload(groups=32),
        workload(kernel=(1, 31), padding=(0, 15, 0, 15)),
    ],
)
@pytest.mark.parametrize("sizes", [(8, 16, 32), (8,), (16,), (32,), (64, 16, 128), (4,)])
def test_tiles_are_within_the_register_file(own: ConvWorkload, sizes: tuple[int, ...]) -> None:
    tile = choose_sub_group_tile(own, replace(HD505, sub_groups=sizes))
    if tile is None:
        assert sizes == (4,) or own.kernel[1] > 7
        return
    assert tile.size in sizes
    assert tile.size * tile.registers(own.kernel) * 4 <= 4096
    assert tile.channels == 1 or own.groups < own.filters
    assert tile.pitch(own.kernel) % tile.size == 0


def test_vectors_are_no_feature_maps() -> None:
    assert choose_sub_group_tile(workload(height=1, width=1), HD505) is None
    assert choose_sub_group_tile(workload(height=3, width=3), HD505) is not None


def test_tiles_shrink_to_what_a_device_takes() -> None:
    tile = choose_sub_group_tile(workload(), replace(HD505, max_work_group_size=8))
    assert tile is not None and tile.size == 8
    small = replace(HD505, max_work_group_size=4)
    assert choose_sub_group_tile(workload(), small) is None
    assert choose_config(workload(), small).algorithm != "subgroup"
    # Kernels have 32-bit indices.
    assert choose_sub_group_tile(workload(height=8192, width=8192), HD505) is None


def test_the_space_of_configurations_begins_with_what_is_chosen() -> None:
    space = config_space(workload(), HD505)
    assert space.configs[0] == choose_config(workload(), HD505)
    assert {c.algorithm for c in space.configs} > {"subgroup", "plain"}
