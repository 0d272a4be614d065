"""What ``memory_budget=`` may be."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tvm_edge
from tests.onnx_models import conv_relu
from tvm_edge.memory.budget import machine_bytes, parse_budget, written


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (None, None),
        (1, 1),
        (np.int64(4096), 4096),
        ("65536", 65536),
        ("512MiB", 512 << 20),
        (" 1 gib ", 1 << 30),
        ("1.5 GB", 1_500_000_000),
        ("2kB", 2000),
        ("0.5KiB", 512),
        ("3 B", 3),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(value: Any, nbytes: int | None) -> None:
    assert parse_budget(value) == nbytes


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        True,
        1e9,
        float("nan"),
        b"1GiB",
        ["1GiB"],
        "",
        "GiB",
        "-1GiB",
        "+1GiB",
        "1e9",
        "0",
        "0.4B",
        "1 G",
        "1GiBs",
        "1,5 GB",
        "0x10",
        "1 GiB 2 MiB",
        "²GiB",
        "٣GiB",
        "9" * 400,
        "1.GiB",
        "nan",
        "inf",
        1 << 80,
    ],
)
@pytest.mark.parametrize("function", ["compile", "analyze"])
def test_what_is_no_size_is_refused_at_the_door(value: Any, function: str) -> None:
    """Before the model is read."""
    with pytest.raises(tvm_edge.InputError, match="is not a size; give") as caught:
        getattr(tvm_edge, function)("/no/such/model.onnx", "llvm", memory_budget=value)
    assert (caught.value.name, caught.value.got) == ("memory_budget", repr(value))


def test_what_is_written_can_be_read_and_is_not_less() -> None:
    for nbytes in (1, 1 << 20, (1 << 20) + 1, 123_456_789):
        again = parse_budget(written(nbytes))
        assert again is not None and nbytes <= again <= nbytes + 2**20 / 10 + 1


def test_more_than_the_machine_has_is_said() -> None:
    here = machine_bytes()
    assert here is not None and here > 1 << 20
    message = f"memory_budget={here + 1} .* is more than the "
    with pytest.warns(tvm_edge.TvmEdgeWarning, match=message):
        report = tvm_edge.analyze(conv_relu(), "llvm", memory_budget=here + 1)
    assert report.memory is not None and report.memory.budget == here + 1


def test_less_than_the_process_itself_takes() -> None:
    with pytest.raises(tvm_edge.MemoryBudgetError, match="the process without a model") as caught:
        tvm_edge.analyze(conv_relu(), "llvm", memory_budget="1MiB")
    smallest = caught.value.smallest_feasible
    assert caught.value.budget == 1 << 20 < smallest
    assert tvm_edge.analyze(conv_relu(), "llvm", memory_budget=smallest).memory is not None
    # What the message says to type is enough.
    said = re.search(r"memory_budget='([^']+)' or more", str(caught.value))
    assert said is not None
    tvm_edge.analyze(conv_relu(), "llvm", memory_budget=said.group(1))
    with pytest.raises(tvm_edge.MemoryBudgetError):
        tvm_edge.analyze(conv_relu(), "llvm", memory_budget=smallest - 1)
