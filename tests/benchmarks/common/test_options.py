"""Options that several benchmarks have."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.catalogue import BENCHMARKS
from benchmarks.common.options import Among, Parser, chosen_numbers, save_json


def test_all_by_default_and_what_is_asked_for_in_its_order() -> None:
    parser = argparse.ArgumentParser()
    assert chosen_numbers(parser, "--rows", None, 3) == [0, 1, 2]
    assert chosen_numbers(parser, "--rows", [2, 0], 3) == [2, 0]


@pytest.mark.parametrize("number", [-1, 99])
@pytest.mark.parametrize(
    "benchmark, arguments",
    [
        ("gpu_layers", ("--layers",)),
        ("parallel_models", ("--rows",)),
        ("tuning", ("--part", "spaces", "--spaces")),
        ("tuning_metaschedule", ("--spaces",)),
        ("workgroup", ("--layers",)),
    ],
)
def test_a_number_of_nothing_is_a_usage_error(
    benchmark: str, arguments: tuple[str, ...], number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        BENCHMARKS[benchmark].run([*arguments, "0", str(number)])
    assert stopped.value.code == 2
    assert f"{arguments[-1]}: there is no {number}; choose from 0 to" in capsys.readouterr().err


def _parser() -> Parser:
    parser = Parser("nosuch", "Nothing")
    parser.shared(networks=Among(("a", "b"), ("a", "b", "c")), rounds=3, json=None)
    return parser


def test_names_have_spaces_or_commas_between_them_and_all_count() -> None:
    assert _parser().parse_args([]).networks == ("a", "b")
    assert _parser().parse_args(["--networks", "c,a", "b"]).networks == ["c", "a", "b"]
    assert _parser().parse_args(["--networks", "c", "--networks", "a"]).networks == ["c", "a"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--networks", "a,d"), "argument --networks: there is no 'd'; choose from a, b, c"),
        (("--rounds", "0"), "argument --rounds: 0 measures nothing; give at least 1"),
        (("--rounds", "x"), "argument --rounds: x measures nothing; give at least 1"),
    ],
)
def test_what_measures_nothing_is_a_usage_error(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        _parser().parse_args(arguments)
    assert stopped.value.code == 2 and said in capsys.readouterr().err


def test_a_file_is_written_where_one_is_wanted(tmp_path: Path) -> None:
    save_json(None, {"ms": 1})
    save_json(tmp_path / "found.json", {"ms": 1})
    assert json.loads((tmp_path / "found.json").read_text()) == {"ms": 1}
