"""The tiles that ``tensor_tiles`` takes, and its table."""

from __future__ import annotations

import pytest

from benchmarks.gpu.mps import share_of
from benchmarks.gpu.tensor_tiles import CONVOLUTIONS, _workload, first_of_each_kind, table
from tests.schedules.gpu.harness import ORIN


@pytest.mark.parametrize(
    ("conv", "dtype", "kinds"),
    [
        ((64, 56, 64, 3, 1), "float16", ("in order", "patches", "Winograd")),
        ((64, 56, 64, 3, 1), "int8", ("in order", "patches")),
        ((64, 208, 128, 3, 2), "float16", ("in order",)),
        ((32, 28, 96, 5, 1), "float16", ("in order", "patches")),
    ],
    ids=str,
)
def test_each_kind_has_tiles(conv: tuple[int, ...], dtype: str, kinds: tuple[str, ...]) -> None:
    found = first_of_each_kind(_workload(CONVOLUTIONS.index(conv), dtype), ORIN, 3)
    assert set(found) == set(kinds)
    for kind, configs in found.items():
        assert len({config.knobs for config in configs}) == len(configs) == 3
        assert all(("patch=0" in c.knobs) == (kind != "patches") for c in configs)
        assert all((c.algorithm == "winograd") == (kind == "Winograd") for c in configs)


def test_wrong_tiles_do_not_count() -> None:
    tile = {"kind": "in order", "us": 10.0, "cycles": 2.0, "right": True}
    faster = {"kind": "patches", "us": 8.0, "cycles": 3.0, "right": True}
    wrong = {"kind": "patches", "us": 1.0, "cycles": 1.0, "right": False}
    lines = table({"8 int8 (64, 56)": [tile, faster, wrong], "8 int8 (1, 1)": [wrong]})
    assert lines[2] == "| 8 int8 (64, 56) | 10.0 | 8.0 | – | 10.0 | **1.25** |"
    assert lines[3] == "| 8 int8 (1, 1) | wrong | wrong | wrong | wrong | wrong |"
    assert lines[-1].endswith(
        "8 multiprocessors, int8, chosen / fastest: geometric mean **1.250**, largest 1.25"
    )


def test_a_share_is_a_percentage() -> None:
    assert share_of(8, 132) == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "6.2"}
    assert share_of(132, 132) == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}
