"""Options that name what to measure by its number."""

from __future__ import annotations

import argparse
import sys

import pytest

from benchmarks import (
    gpu_layers,
    parallel_models,
    tuning,
    tuning_metaschedule,
    workgroup,
)
from benchmarks.chosen import chosen_numbers


def test_all_by_default_and_what_is_asked_for_in_its_order() -> None:
    parser = argparse.ArgumentParser()
    assert chosen_numbers(parser, "--rows", None, 3) == [0, 1, 2]
    assert chosen_numbers(parser, "--rows", [2, 0], 3) == [2, 0]


@pytest.mark.parametrize("number", [-1, 99])
@pytest.mark.parametrize(
    "benchmark, arguments",
    [
        (gpu_layers, ("--layers",)),
        (parallel_models, ("--rows",)),
        (tuning, ("--part", "spaces", "--spaces")),
        (tuning_metaschedule, ("--spaces",)),
        (workgroup, ("--layers",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_number_of_nothing_is_a_usage_error(
    benchmark: object,
    arguments: tuple[str, ...],
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments, "0", str(number)])
    with pytest.raises(SystemExit) as stopped:
        benchmark.main()  # type: ignore[attr-defined]
    assert stopped.value.code == 2
    assert f"{arguments[-1]}: there is no {number}; choose from 0 to" in capsys.readouterr().err
