"""Whole networks beside peers: what is written, what counts, what the table says."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.common.correctness import load_expected, load_inputs, write_expected
from benchmarks.common.processes import run_child
from benchmarks.cpu import networks, new_networks
from benchmarks.cpu.new_networks import LISTS, case_of, write_network
from benchmarks.models.against_onnx_runtime import Case
from tvm_edge import zoo

_ADDED = """
<ir_version: 8, opset_import: ["" : 17]>
added (float[n,2,h,5] line, float[1,3] other) => (float[n,2,h,5] text, float[1,3] twice)
{
    text = Relu(line)
    twice = Add(other, other)
}
"""

_FIXED = _ADDED.replace("[n,2,h,5]", "[1,2,3,5]")
_SHAPE = (1, 2, 3, 5)


def _timed(ms: float, **found: Any) -> dict[str, Any]:
    each = {"ms": ms, "error": 0.0, "right": True, "loaded_mib": 1, "resident_mib": 2, **found}
    return networks._summary([each])


def test_columns_follow_the_runtimes() -> None:
    row = {
        "network": "crnn",
        "runtimes": {
            "tvm-edge": _timed(2.0),
            "ncnn": _timed(1.0, right=False, error=0.5),
            "mnn": {"failed": "conversion: no Loop"},
        },
    }
    lines = networks._markdown([row], ["tvm-edge", "ncnn", "mnn"]).splitlines()
    heads, cells = ([cell.strip() for cell in lines[n].split("|")[1:-1]] for n in (0, 2))
    assert heads[:4] == ["network", "tvm-edge, ms", "ncnn, ms", "MNN, ms"]
    assert len(cells) == len(heads) == lines[1].count("---")
    assert cells[5] == "yes"  # ours
    assert cells[2:4] == ["1 [1–1] **wrong: 5.0e-01**", "**conversion: no Loop**"]
    assert lines[-1] == "| crnn | 1 → 2 | 1 → 2 | – |"
    failed = networks._line({"network": "crnn", "failed": "no file"}, ["tvm-edge", "mnn"])
    assert failed.count("|") == lines[0].count("|") - 1


def test_a_wrong_peer_does_not_count() -> None:
    found = {
        "tvm-edge": [{"ms": 2.0, "right": True}, {"ms": 2.0, "right": True}],
        "ncnn": [{"ms": 1.0, "right": True}, {"ms": 1.0, "right": False}],
        "openvino": [{"ms": 3.0, "right": True}, {"ms": 5.0, "right": True}],
        "mnn": [{"failed": "exit status 1"}, {"failed": "exit status 1"}],
    }
    assert networks._ratios(found) == {
        "best_peer": "openvino",
        "ratio": 2.0,
        "ratio_range": [1.5, 2.5],
    }


def test_listed_networks_have_inputs_and_names_of_their_own() -> None:
    listed = [name for names in LISTS.values() for name in names]
    assert len({*listed, *zoo.names(), *LISTS}) == len(listed) + len(zoo.names()) + len(LISTS)
    cases = [case_of(name) for name in listed]
    assert all(case and case.inputs for case in cases)


def test_a_file_gets_the_shapes_of_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_networks, "_kept", lambda _source: tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    model = onnx.parser.parse_model(_ADDED)
    del model.graph.node[1], model.graph.input[1], model.graph.output[1]
    onnx.save(model, tmp_path / "kept" / "crnn.onnx")
    case = Case("crnn", "crnn", {"line": (_SHAPE, "normal")})
    monkeypatch.setattr(new_networks, "case_of", lambda _name: case)
    write_network("crnn", "unused", tmp_path)
    (line,) = onnx.load(tmp_path / "crnn.onnx").graph.input
    assert tuple(dim.dim_value for dim in line.type.tensor_type.shape.dim) == _SHAPE
    given, expected = load_inputs("crnn", tmp_path), load_expected("crnn", tmp_path)
    np.testing.assert_array_equal(expected["text"], np.maximum(given["line"], 0))


@pytest.mark.parametrize(("peer", "package"), [("ncnn", "pnnx"), ("mnn", "MNN")])
def test_converted_peers_take_several_inputs_and_outputs(
    peer: str, package: str, tmp_path: Path
) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    onnx.save(onnx.parser.parse_model(_FIXED), tmp_path / "added.onnx")
    generator = np.random.default_rng()
    given = {"line": (1, 2, 3, 5), "other": (1, 3)}
    inputs = {name: generator.standard_normal(shape, "float32") for name, shape in given.items()}
    write_expected("added", inputs, tmp_path)
    assert run_child(networks.__name__, "convert", peer, "added", tmp_path) == {}
    timed = run_child(networks.__name__, "time", peer, "added", "1", "0", tmp_path)
    assert "ms" in timed, timed
    checked = run_child(networks.__name__, "check", peer, "added", 1e-4, tmp_path)
    assert checked["right"], checked
