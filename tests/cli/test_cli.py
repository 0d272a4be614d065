"""Each command's normal path: it does its work and its ``--json`` says what it did."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.cli.conftest import Files, Invoke
from tests.onnx_models import conv_relu, make_model

COMMANDS = (
    "compile",
    "run",
    "bench",
    "profile",
    "analyze",
    "compare",
    "quantize",
    "tune",
    "devices",
    "doctor",
)


def test_help_lists_the_commands(invoke: Invoke) -> None:
    outcome = invoke("--help")
    assert outcome.code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in outcome.out
    assert "Exit status" in outcome.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(invoke: Invoke, command: str) -> None:
    outcome = invoke(command, "--help")
    assert outcome.code == 0
    assert "--json" in outcome.out
    assert outcome.err == ""


def test_version(invoke: Invoke) -> None:
    assert invoke("--version").out.split()[-1] == tvm_edge.__version__


def test_compile_then_run_agree_with_the_library(
    invoke: Invoke, files: Files, compiled_small: tvm_edge.CompiledModel, tmp_path: Path
) -> None:
    artifact, outputs = tmp_path / "model.tvme", tmp_path / "outputs.npz"
    page = artifact.with_suffix(".html")
    compiled = invoke("compile", files.model, "-o", artifact, "--html", page, "--json")
    assert "Not measured." in page.read_text(encoding="utf-8")
    assert (compiled.code, compiled.err) == (0, "")
    assert compiled.data["artifact"] == str(artifact)
    assert compiled.data["bytes"] == artifact.stat().st_size
    kernels = [kernel["name"] for kernel in compiled.data["report"]["kernels"]]
    assert kernels == [kernel.name for kernel in compiled_small.report.kernels]

    ran = invoke("run", artifact, "--inputs", files.inputs, "--outputs", outputs, "--json")
    assert (ran.code, ran.err) == (0, "")
    expected = compiled_small.run(dict(np.load(files.inputs)))["pooled"]
    np.testing.assert_array_equal(np.load(outputs)["pooled"], expected)
    (row,) = ran.data["outputs"]
    assert (row["name"], row["shape"], row["dtype"]) == ("pooled", [1, 8, 1, 1], "float32")
    assert row["mean"] == pytest.approx(float(expected.mean()))


def test_compile_names_the_artifact_after_the_model(
    invoke: Invoke, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = invoke("compile", files.model)
    assert outcome.code == 0
    assert "llvm 3/3 operators" in outcome.out
    assert "wrote small.tvme" in outcome.out
    assert tvm_edge.load(tmp_path / "small.tvme").outputs[0].name == "pooled"


def test_compile_for_a_target_in_json(invoke: Invoke, files: Files, tmp_path: Path) -> None:
    target = '{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}'
    outcome = invoke("analyze", files.model, "--target", target, "--json")
    assert outcome.code == 0
    assert "cortex-a72" in outcome.data["target"]


def test_compile_places_operators_as_it_is_told(
    invoke: Invoke, files: Files, tmp_path: Path, gpu: str
) -> None:
    """One operator on the CPU beside the GPU, and that CPU's code as asked for."""
    node = next(n.name for n in onnx.load(files.model).graph.node if n.op_type == "Relu")
    command = ("compile", files.model, "--target", gpu, "-o", tmp_path / "model.tvme", "--json")
    assert {p["device"] for p in invoke(*command).data["report"]["placements"]} == {gpu}
    outcome = invoke(*command, "--fallback", node, "--host", "llvm")
    placed = {p["operator"]: p["device"] for p in outcome.data["report"]["placements"]}
    assert placed.pop(node) == "llvm" and set(placed.values()) == {gpu}


def test_compile_in_a_precision_that_the_target_has_not(invoke: Invoke, files: Files) -> None:
    outcome = invoke("compile", files.model, "--precision", "tf32")
    assert outcome.code == 4
    assert "precision='tf32' needs tensor cores" in outcome.err


def test_embedded_programs_are_in_the_artifact(
    invoke: Invoke, files: Files, tmp_path: Path, gpu: str
) -> None:
    if gpu != "opencl":
        pytest.skip("CUDA kernels are machine code in the library already")
    artifact = tmp_path / "model.tvme"
    common = ("compile", files.model, "--target", gpu, "-o", artifact)
    assert invoke(*common).code == 0
    assert "programs.bin" not in zipfile.ZipFile(artifact).namelist()
    assert invoke(*common, "--embed-programs").code == 0
    assert "programs.bin" in zipfile.ZipFile(artifact).namelist()


def test_input_shapes_fix_or_describe_dimensions(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "dynamic.onnx"
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("n", 4)}, ["y"])
    onnx.save(model, path)
    outcome = invoke("run", path, "--json")
    assert outcome.data["outputs"][0]["shape"] == [1, 4]  # a batch of the typical length
    outcome = invoke("run", path, "--input-shapes", "x:3,4", "--json")
    assert outcome.data["outputs"][0]["shape"] == [3, 4]
    outcome = invoke("run", path, "--input-shapes", "x:n=2..64/2@6,4", "--json")
    assert outcome.data["outputs"][0]["shape"] == [6, 4]
    np.savez(tmp_path / "five.npz", x=np.zeros((5, 4), "float32"))
    given = ("--input-shapes", "x:n=2..64/2@6,4", "--inputs", tmp_path / "five.npz")
    refused = invoke("run", path, *given)
    assert refused.code == 4
    assert "'n' takes 2 to 64, multiples of 2" in refused.err
    refused = invoke("run", path, "--input-shapes", "x:n=9..8,4")
    assert refused.code == 4
    assert "has no length: 9 to 8" in refused.err


def test_input_values_make_constants(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "scaled.onnx"
    nodes = [
        helper.make_node("Cast", ["rate"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "real"], ["scaled"]),
        helper.make_node("Reshape", ["scaled", "size"], ["y"]),
    ]
    inputs = {"x": (6,), "rate": (), "size": (2,)}
    kinds = {"rate": TensorProto.INT64, "size": TensorProto.INT64}
    onnx.save(make_model(nodes, inputs, ["y"], dtypes=kinds), path)
    given = ("--input-values", "rate:16000", "--input-values", "size:2,3")
    outcome = invoke("run", path, *given, "--json")
    assert outcome.data["outputs"][0]["shape"] == [2, 3]
    wrong = invoke("run", path, "--input-values", "rate")
    assert wrong.code == 2
    assert "sr:16000" in wrong.err
    for command in ("analyze", "tune"):
        unknown = invoke(command, path, "--input-values", "rat:1")
        assert unknown.code == 4
        assert "'rat', which is no input" in unknown.err


def test_print_top(invoke: Invoke, files: Files, compiled_small: tvm_edge.CompiledModel) -> None:
    values = compiled_small.run(dict(np.load(files.inputs)))["pooled"].ravel()
    order = np.argsort(-values, kind="stable")[:3]
    command = ("run", files.artifact, "--inputs", files.inputs, "--print-top", 3)
    (row,) = invoke(*command, "--json").data["outputs"]
    assert [item["index"] for item in row["top"]] == [[0, int(i), 0, 0] for i in order]
    assert [item["value"] for item in row["top"]] == [float(values[i]) for i in order]
    text = invoke(*command).out
    assert f"[0, {order[0]}, 0, 0]: {values[order[0]]:.6g}" in text


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TensorProto.UINT8, [0, 3, 1, 2]),
        (TensorProto.INT8, [-128, 127, 0, 5]),
        (TensorProto.INT64, [0, 2**40, 1, -3]),
        (TensorProto.BOOL, [0, 1, 0, 0]),
    ],
)
def test_print_top_of_every_type(
    invoke: Invoke, tmp_path: Path, kind: int, values: list[int]
) -> None:
    """The largest element is the largest in its own type's order."""
    path, inputs = tmp_path / "cast.onnx", tmp_path / "inputs.npz"
    model = make_model(
        [helper.make_node("Identity", ["x"], ["y"])],
        {"x": (4,)},
        ["y"],
        dtypes={"x": kind, "y": kind},
    )
    onnx.save(model, path)
    np.savez(inputs, x=np.array(values, helper.tensor_dtype_to_np_dtype(kind)))
    outcome = invoke("run", path, "--inputs", inputs, "--print-top", 1, "--json")
    assert outcome.code == 0, outcome.err
    (top,) = outcome.data["outputs"][0]["top"]
    assert top == {"index": [values.index(max(values))], "value": max(values)}


def test_outputs_of_any_name_and_value(invoke: Invoke, tmp_path: Path) -> None:
    """A tensor may be called like a parameter of ``np.savez``, and JSON knows no infinity."""
    path, inputs, outputs = (tmp_path / n for n in ("log.onnx", "inputs.npz", "outputs.npz"))
    onnx.save(make_model([helper.make_node("Log", ["x"], ["file"])], {"x": (2,)}, ["file"]), path)
    np.savez(inputs, x=np.array([0, 1], "float32"))
    outcome = invoke("run", path, "--inputs", inputs, "--outputs", outputs, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.data["outputs"][0]["name"] == "file"
    np.testing.assert_array_equal(np.load(outputs)["file"], [-np.inf, 0])


def test_outputs_go_where_they_were_asked_to(invoke: Invoke, files: Files, tmp_path: Path) -> None:
    """``np.savez`` appends .npz to other names."""
    outputs = tmp_path / "result"
    assert invoke("run", files.artifact, "--outputs", outputs).code == 0
    assert list(tmp_path.iterdir()) == [outputs]


def test_run_without_inputs_is_reproducible(invoke: Invoke, files: Files) -> None:
    first, second = (invoke("run", files.artifact).out for _ in range(2))
    assert first == second
    assert "pooled: float32[1, 8, 1, 1]" in first


def test_bench(invoke: Invoke, files: Files) -> None:
    command = ("bench", files.artifact, "--repeat", 2, "--warmup", 0, "--num-threads", 1)
    outcome = invoke(*command, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.data["repeat"] == 2
    assert outcome.data["num_threads"] == 1
    assert 0 < outcome.data["end_to_end"]["min"] <= outcome.data["end_to_end"]["median"]
    assert "over 2 runs on 1 threads" in invoke(*command).out


def test_bench_beside_busy_processes(invoke: Invoke, files: Files) -> None:
    command = ("bench", files.artifact, "--repeat", 2, "--warmup", 0, "--load", 2)
    before = children()
    outcome = invoke(*command, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.data["load"] == 2
    for part in ("idle", "loaded"):
        assert (
            0
            < outcome.data[part]["end_to_end"]["median"]
            <= outcome.data[part]["end_to_end"]["p99"]
        )
    assert children() == before, "busy processes stayed"
    assert "2 busy processes" in invoke(*command).out
    refused = invoke(*command, "--rpc-tracker", "localhost:1")
    assert (refused.code, "--load" in refused.err) == (2, True)


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.parametrize("cpus", ["four", "3-1", "1,,2", "-1", "99999"])
def test_bad_cpus(invoke: Invoke, files: Files, cpus: str) -> None:
    outcome = invoke("bench", files.artifact, "--repeat", 1, "--cpus", cpus)
    assert outcome.code in (2, 4)
    assert "CPU" in outcome.err or "cpus" in outcome.err


def test_cpus(invoke: Invoke, files: Files) -> None:
    one = min(os.sched_getaffinity(0))
    command = ("bench", files.artifact, "--repeat", 1, "--cpus", f"{one}-{one}", "--json")
    assert invoke(*command).data["num_threads"] == 1


def test_profile(
    invoke: Invoke, files: Files, compiled_small: tvm_edge.CompiledModel, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    names = [kernel.name for kernel in compiled_small.report.kernels]
    command = ("profile", files.artifact, "--repeat", 1)
    outcome = invoke(*command, "--trace", trace, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert [kernel["name"] for kernel in outcome.data["kernels"]] == names
    events = json.loads(trace.read_text())["traceEvents"]
    assert [event["name"] for event in events] == names
    table = invoke(*command, "--print-top", 1).out
    assert sum(name in table for name in names) == 1
    page = tmp_path / "report.html"
    assert invoke(*command, "--html", page).code == 0
    assert "Timeline of kernels by device, measured" in page.read_text(encoding="utf-8")


def test_analyze(
    invoke: Invoke, files: Files, compiled_small: tvm_edge.CompiledModel, tmp_path: Path
) -> None:
    outcome = invoke("analyze", files.model, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    report = tvm_edge.CompileReport.from_dict(outcome.data)
    assert report.placements == compiled_small.report.placements
    assert report.kernels == compiled_small.report.kernels
    assert report.placement_line() in invoke("analyze", files.model).out


def test_devices(invoke: Invoke) -> None:
    outcome = invoke("devices", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.data[0]["target"] == "llvm"
    assert invoke("devices").out.startswith(f"llvm:0  {outcome.data[0]['name']}")


def test_doctor(invoke: Invoke) -> None:
    outcome = invoke("doctor", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.data["healthy"] is True
    table = invoke("doctor").out
    assert all(check["name"] in table for check in outcome.data["checks"])


def test_cache(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TVM_EDGE_CACHE", str(folder))
    assert invoke("cache", "show", "--json").data["entries"] == 0
    model = tmp_path / "model.onnx"
    onnx.save(conv_relu(), model)
    assert invoke("compile", model, "-o", tmp_path / "model.tvme").code == 0
    state = invoke("cache", "show", "--json").data
    assert state["folder"] == str(folder) and state["entries"] > 0
    assert 0 < state["nbytes"] < state["limit"]
    assert f"{state['entries']} entries" in invoke("cache", "clear").out
    assert invoke("cache", "show", "--json").data["entries"] == 0
    monkeypatch.setenv("TVM_EDGE_CACHE", "0")
    assert "is off" in invoke("cache", "show").out and "is off" in invoke("cache", "clear").out
