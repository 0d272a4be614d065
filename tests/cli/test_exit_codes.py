"""What the command line exits with, and what it says on which stream."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.conftest import Files, Invoke
from tests.cli.terminal import on_a_terminal
from tests.marks import in_full
from tests.onnx_models import conv_relu
from tests.runtime.support import child_environment, run_child

ESCAPE = "\x1b"
START_TIMEOUT_S, STOP_TIMEOUT_S = 60, 30


def command_line(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """``tvm-edge`` as a process of its own."""
    return run_child(["-m", "tvm_edge", *map(str, arguments)], environment=environment)


def test_a_process_succeeds_quietly(files: Files, tmp_path: Path) -> None:
    """Standard output is JSON and nothing else; no spinner where there is no terminal."""
    done = command_line("compile", files.model, "-o", tmp_path / "model.tvme", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["report"]["model"] == "small"
    assert ESCAPE not in done.stdout


def test_a_terminal_shows_progress(files: Files, tmp_path: Path) -> None:
    """On standard error only: standard output stays clean for a pipe."""
    shown, printed = on_a_terminal(["bench", files.artifact, "--repeat=1", "--json"], tmp_path)
    assert ESCAPE in shown and "loading" in shown and "measuring" in shown
    assert json.loads(printed)["repeat"] == 1


def test_verbose_logs_and_warnings_go_to_standard_error(tmp_path: Path) -> None:
    model = conv_relu()
    bias = next(t for t in model.graph.initializer if t.name == "bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(np.full(8, np.nan, "float32"), "bias"))
    path = tmp_path / "broken.onnx"
    onnx.save(model, path)
    done = command_line("-v", "compile", path, "-o", tmp_path / "broken.tvme", "--json")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert any(line.startswith("tvm_edge.compiler: broken: llvm 3/3") for line in lines)
    (warning,) = [line for line in lines if line.startswith("warning: ")]
    assert "bias" in warning
    assert json.loads(done.stdout)["report"]["warnings"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["--frobnicate"],
        ["compile"],
        ["compile", "model.onnx", "--frobnicate"],
        ["compile", "model.onnx", "--target", '{"kind": '],
        ["compile", "model.onnx", "--input-shapes", "data"],
        ["compile", "model.onnx", "--input-shapes", "data:1,x="],
        ["bench", "model.tvme", "--repeat", "0"],
        ["bench", "model.tvme", "--repeat", "many"],
        ["run", "model.tvme", "--num-threads", "0"],
        ["run", "model.tvme", "--print-top", "-1"],
        ["devices", "extra"],
    ],
    ids=" ".join,
)
def test_usage_errors_exit_with_2(invoke: Invoke, arguments: list[str]) -> None:
    outcome = invoke(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    assert line.startswith("error: ") and line.endswith(" --help")


@pytest.mark.parametrize("group", [[], ["db"]], ids=str)
def test_a_group_alone_shows_its_commands(invoke: Invoke, group: list[str]) -> None:
    outcome = invoke(*group)
    assert outcome.code == 2
    assert "Commands:\n" in outcome.err and "error" not in outcome.err.splitlines()[0]


USER_ERRORS = {
    # arguments → what the message names; {text} and so on are files that the test writes
    "compile {text}": "{text}",
    "compile {absent}": "{absent}",
    "compile {model} -o {absent}/model.tvme": "{absent}",
    "compile {model} --target lvm": "llvm",
    "compile {model} --target vulkan": "vulkan",
    "compile {model} --input-shapes dta:1,3,16,16": "dta",
    "analyze zoo:no_such_network": "no_such_network",
    "compile {artifact}": "tvm_edge.load",
    "compare {model} --inputs {other}": "has no input 'image'",
    "bench {truncated}": "{truncated}",
    "bench {artifact} --mode throughput --target cuda": "--target",
    "db show {damaged}": "sqlite3 {damaged} .recover",
    "devices --rpc-tracker localhost:9": "localhost:9 (Connect to 127.0.0.1:9 failed)",
    "profile {absent}.tvme": "{absent}",
    "profile {artifact} --repeat 1 --trace {absent}/trace.json": "{absent}",
    "run {artifact} --inputs {absent}": "{absent}",
    "run {artifact} --inputs {text}": "'{text}': it is no .npz file",
    "run {artifact} --inputs {nameless}": "'{nameless}': it is no .npz file",
    "run {artifact} --inputs {other}": "image",
    "run {artifact} --outputs {absent}/outputs.npz": "{absent}",
    "run {artifact} --input-shapes data:1,3,8,8": "--input-shapes",
}


@pytest.mark.parametrize("command", USER_ERRORS)
def test_user_errors_exit_with_4(
    invoke: Invoke, files: Files, tmp_path: Path, command: str
) -> None:
    names = {
        "model": files.model,
        "artifact": files.artifact,
        "text": tmp_path / "notes.txt",
        "truncated": tmp_path / "truncated.tvme",
        "nameless": tmp_path / "array.npy",
        "other": tmp_path / "other.npz",
        "damaged": tmp_path / "damaged.sqlite3",
        "absent": tmp_path / "absent",
    }
    names["text"].write_text("neither a model nor inputs")
    names["damaged"].write_text("no database")
    names["truncated"].write_bytes(files.artifact.read_bytes()[:5000])
    np.save(names["nameless"], np.zeros(3))
    np.savez(names["other"], image=np.zeros((1, 3, 16, 16), "float32"))
    outcome = invoke(*(part.format(**names) for part in command.split()), "--json")
    assert outcome.code == 4, outcome.err
    assert outcome.out == ""
    message = outcome.err.splitlines()[-1]  # TVM may have logged something before
    assert message.startswith("error: ")
    assert USER_ERRORS[command].format(**names) in message


def test_an_old_target_string_exits_with_4(invoke: Invoke, files: Files) -> None:
    outcome = invoke("compile", files.model, "--target", "llvm -mcpu=znver4")
    assert outcome.code == 4
    assert "{'kind': 'llvm', 'mcpu': 'znver4'}" in outcome.err


@pytest.mark.parametrize(
    ("mcpu", "meant"),
    [("skylake-avx521", "'skylake-avx512'"), ("cortex-a76", "'aarch64-linux-gnu'")],
)
def test_an_unknown_cpu_exits_with_4(
    invoke: Invoke, files: Files, tmp_path: Path, mcpu: str, meant: str
) -> None:
    artifact = tmp_path / "model.tvme"
    target = json.dumps({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu})
    outcome = invoke("compile", files.model, "--target", target, "-o", artifact)
    assert outcome.code == 4
    message = outcome.err.splitlines()[-1]
    assert message.startswith("error: ")
    assert mcpu in message and "x86_64-linux-gnu" in message and meant in message
    assert not artifact.exists()


def test_a_bad_environment_variable_exits_with_4(
    invoke: Invoke, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "all")
    outcome = invoke("run", files.artifact)
    assert outcome.code == 4
    assert "TVM_NUM_THREADS" in outcome.err


def test_a_folder_for_dumps_that_is_a_file_exits_with_4(
    invoke: Invoke, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_EDGE_DUMP", str(files.model))
    outcome = invoke("analyze", files.model)
    assert outcome.code == 4
    assert outcome.err.startswith("error: ") and "TVM_EDGE_DUMP" in outcome.err


@pytest.mark.parametrize("model", ["model.onnx", "zoo:shapes_ssd"])
def test_a_bundle_of_a_model_says_to_compile_it(invoke: Invoke, tmp_path: Path, model: str) -> None:
    outcome = invoke("bundle", model, "-o", tmp_path / "bundle")
    assert outcome.code == 4
    assert f"tvm-edge compile {model}" in outcome.err


def test_a_runtime_that_is_not_there_exits_with_5(files: Files, tmp_path: Path) -> None:
    """TVM warns of it when it is imported: in a line, as all warnings are."""
    done = command_line("bench", files.artifact, TVM_EDGE_RUNTIME=str(tmp_path / "absent.so"))
    assert done.returncode == 5
    lines = done.stderr.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["warning", "error"]
    assert all("unset" in line for line in lines)


def test_compile_options_do_not_fit_an_artifact(invoke: Invoke, files: Files) -> None:
    """A target that cannot be honoured must not be dropped in silence."""
    outcome = invoke("bench", files.artifact, "--repeat", 1, "--target", "arm/rk3399")
    assert outcome.code == 4
    assert "--target" in outcome.err


def test_a_missing_cpu_feature_exits_with_5(files: Files) -> None:
    done = command_line("run", files.other_cpu, "--json")
    assert done.returncode == 5
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "this CPU lacks" in done.stderr


def test_an_unhealthy_doctor_exits_with_5() -> None:
    done = command_line("doctor", "--json", TVM_USE_RUNTIME_LIB="1")
    assert done.returncode == 5
    assert json.loads(done.stdout)["healthy"] is False


def test_compiling_on_the_runtime_tier_exits_with_5(files: Files, tmp_path: Path) -> None:
    """The compiler is missing there, and the message says which variable hides it."""
    arguments = ("compile", files.model, "-o", tmp_path / "model.tvme")
    done = command_line(*arguments, TVM_USE_RUNTIME_LIB="1")
    assert done.returncode == 5, done.stderr
    assert "TVM_USE_RUNTIME_LIB" in done.stderr


def test_a_bug_exits_with_1(invoke: Invoke, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise ZeroDivisionError("a kernel of zero size")

    monkeypatch.setattr("tvm_edge.load", fail)
    outcome = invoke("bench", files.artifact)
    assert outcome.code == 1
    assert outcome.out == ""
    assert "internal error: ZeroDivisionError: a kernel of zero size" in outcome.err
    assert "-v" in outcome.err


@pytest.mark.parametrize("command", ["bench", *in_full("profile")])
def test_control_c_exits_with_130(files: Files, tmp_path: Path, command: str) -> None:
    artifact = tmp_path / "model.tvme"
    artifact.write_bytes(files.artifact.read_bytes())
    process = subprocess.Popen(
        [sys.executable, "-m", "tvm_edge", command, str(artifact), "--repeat=1000000000"],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        maps = Path(f"/proc/{process.pid}/maps")
        while str(artifact) not in maps.read_text():  # loaded: the measurement follows
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=STOP_TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert out == ""
    assert "interrupted" in err
    assert "Traceback" not in err
