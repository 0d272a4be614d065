"""What the tuner refuses before it measures anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tvm_edge
from tests.tuning.made import network
from tvm_edge.errors import DeviceUnavailableError, InputError

MEANINGLESS: list[tuple[str, Any]] = [
    *(("trials", value) for value in (0, -1, True, "8", 2.5)),
    *(("time_budget", value) for value in (0, -1.0, float("nan"), "60", True)),
    *(("level", value) for value in ("quick", None, ["fast"])),
    *(("precision", value) for value in ("float16", None)),
    *(("seed", value) for value in (-1, None, 0.5, True)),
    ("tracker", "localhost"),
    ("key", "rk3399"),
    ("tuning_logs", False),
    ("tuning_logs", True),
    ("tuning_logs", __file__),
]


@pytest.mark.parametrize(("name", "value"), MEANINGLESS, ids=map(str, MEANINGLESS))
def test_arguments_that_mean_nothing(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        tvm_edge.tune(network(), "llvm", **{"tuning_logs": tmp_path, name: value})
    assert caught.value.name == name and name in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_device_that_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailableError, match="device"):
        tvm_edge.tune(network(), "mali-t860", tuning_logs=tmp_path)
    assert not list(tmp_path.iterdir())
