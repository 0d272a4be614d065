"""``tvm-edge analyze``: tables for people, the same as JSON for programs."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.cli.conftest import Files, Invoke
from tests.onnx_models import unsupported_model
from tvm_edge import CompileReport


def test_tables_and_json_say_the_same(invoke: Invoke, files: Files) -> None:
    command = ("analyze", files.model, "--target", "mali-t860")
    outcome = invoke(*command, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    fields = outcome.data
    report = CompileReport.from_dict(fields)
    assert fields["flops"] == report.flops == 2 * (8 * 256 * 27) + 2 * 8 * 256
    assert [o["name"] for o in fields["operators"]] == ["conv", "relu", "pool"]

    lines = invoke(*command).out.splitlines()
    for row in fields["operator_types"]:
        (line,) = [line for line in lines if line.split()[:1] == [row["op_type"]]]
        cells = line.split()
        assert cells[1:4] == [
            str(row["count"]),
            f"{row['flops'] / 1e6:.3f}",
            f"{row['share']:.1%}",
        ]
    bins = fields["flops_distribution"]["operators"]["bins"]
    kernels = fields["flops_distribution"]["kernels"]["bins"]
    start = next(i for i, line in enumerate(lines) if line.startswith("distribution of FLOPs"))
    for b, k, line in zip(bins, kernels, lines[start + 2 :], strict=False):
        before, _, after = line.replace("█", " ").partition(" – ")
        assert float(before) == b["low"] / 1e6
        assert [after.split()[1], after.split()[-1]] == [str(b["count"]), str(k["count"])]
    assert sum(b["count"] for b in bins) == 3
    assert max(map(len, lines)) <= 100


def test_every_operator_on_request(invoke: Invoke, files: Files) -> None:
    command = ("analyze", files.model, "--target", "mali-t860", "--fallback", "pool")
    lines = invoke(*command, "--operators").out.splitlines()
    for name, device in (("conv", "opencl"), ("relu", "opencl"), ("pool", "llvm")):
        assert any(line.split()[:1] == [name] and device in line.split() for line in lines)
    assert not any(line.startswith("pool") for line in invoke(*command).out.splitlines())


def test_unsupported_operators_are_an_answer(invoke: Invoke, tmp_path: Path) -> None:
    """Exit status 0 and a section of their own, where compile fails with 4."""
    path = tmp_path / "odd.onnx"
    onnx.save(unsupported_model(), path)
    assert invoke("compile", path).code == 4
    outcome = invoke("analyze", path, "--json")
    assert outcome.code == 0
    missing = {u["op_type"]: u["operators"] for u in outcome.data["unsupported"]}
    assert missing == {"com.example.Mystery": ["first", "second"], "NonMaxSuppression": ["nms"]}
    text = invoke("analyze", path).out
    assert "cannot be compiled" in text and "first, second" in text
    assert "distribution of FLOPs" in text


def test_a_page_on_request(invoke: Invoke, files: Files, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert invoke("analyze", files.model, "--html", page, "--json").code == 0
    assert "<html" in page.read_text(encoding="utf-8")
    failed = invoke("analyze", files.model, "--html", tmp_path / "absent" / "report.html")
    assert failed.code == 4 and "choose another path" in failed.err


@pytest.mark.parametrize(
    ("options", "code", "fragment"),
    [
        (("--host", "llvm"), 4, "leave host out"),
        (("--fallback", "nowhere", "--target", "mali-t860"), 4, "nowhere"),
        (("--host", "{"), 2, "JSON"),
    ],
)
def test_wrong_options(
    invoke: Invoke, files: Files, options: tuple[str, ...], code: int, fragment: str
) -> None:
    outcome = invoke("analyze", files.model, *options)
    assert outcome.code == code
    assert fragment in outcome.err


def test_where_the_memory_is(invoke: Invoke, files: Files) -> None:
    """The layers with the most of it, by device; the JSON has every part."""
    command = ("analyze", files.model, "--target", "mali-t860", "--fallback", "pool", "--memory")
    lines = [line.rstrip() for line in invoke(*command).out.splitlines()]
    assert max(map(len, lines)) <= 100
    devices = lines.index("memory by device")
    assert [line.split()[0] for line in lines[devices + 1 : devices + 4]] == [
        "device",
        "opencl",
        "llvm",
    ]
    layers = lines.index("layers that take the most memory")
    fields = invoke(*command, "--json").data
    size = {
        ", ".join(k["operators"]): k["weights"] + k["results"] + k["workspace"]
        for k in fields["kernels"]
    }
    largest = max(size, key=lambda name: size[name])
    assert lines[layers + 2].startswith(largest)
    assert lines[layers + 2].endswith(f"{size[largest] / sum(size.values()):.1%}")
    memory = fields["memory"]
    resident = memory["weights"] - memory["mapped"] + memory["activations"] + memory["workspace"]
    own = memory["inputs_outputs"] + memory["programs"] + memory["floor"] + memory["rounding"]
    assert memory["peak"] == resident + own


def test_a_budget(invoke: Invoke, files: Files, tmp_path: Path) -> None:
    outcome = invoke("analyze", files.model, "--memory-budget", "1 GiB")
    assert outcome.code == 0
    assert "budget     1024.0 MiB" in outcome.out and "plan       as is: " in outcome.out
    assert invoke("analyze", files.model, "--memory-budget", "much").code == 4
    refused = invoke("analyze", files.model, "--memory-budget", "1MiB")
    assert refused.code == 4 and "does not fit memory_budget=1048576" in refused.err
    path = tmp_path / "model.tvme"
    compiled = invoke("compile", files.model, "-o", path, "--memory-budget", "1GiB")
    assert compiled.code == 0 and "memory: as is, " in compiled.out and path.exists()
