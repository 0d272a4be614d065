"""Several models on the command line: into one artifact, and some of them out of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.conftest import Files, Invoke
from tests.onnx_models import conv_relu, random_input


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("several") / "other.onnx"
    onnx.save(conv_relu(5), path)
    return path


def test_from_models_to_outputs(invoke: Invoke, files: Files, other: Path, tmp_path: Path) -> None:
    artifact, outputs = tmp_path / "both.tvme", tmp_path / "out.npz"
    models = ["--model", f"small={files.model}", "--model", f"other={other}"]
    done = invoke("compile", *models, "-o", artifact, "--json")
    assert done.code == 0, done.err
    assert [model["name"] for model in done.data["report"]["models"]] == ["small", "other"]
    inputs = tmp_path / "in.npz"
    np.savez(inputs, **{"other/data": random_input((1, 3, 16, 16))})
    done = invoke("run", artifact, "--inputs", inputs, "--only", "other", "--outputs", outputs)
    assert done.code == 0, done.err
    with np.load(outputs) as found:
        assert found.files == ["other/pooled"]
    assert invoke("run", artifact, "--inputs", inputs).code == 4
    assert len(invoke("run", artifact, "--json").data["outputs"]) == 2
    for command in ("bench", "profile"):
        done = invoke(command, artifact, "--repeat", 1, "--only", "small", "--json")
        assert done.code == 0, done.err
    assert all("small/" in kernel["operators"][0] for kernel in done.data["kernels"])
    done = invoke("profile", artifact, "--only", "small", "--html", tmp_path / "page.html")
    assert done.code == 2 and "leave out --html or --only" in done.err
    done = invoke("run", artifact, "--only", "smal")
    assert done.code == 4 and "did you mean 'small'" in done.err


def test_analyze(invoke: Invoke, files: Files, other: Path) -> None:
    done = invoke("analyze", "--model", f"a={files.model}", "--model", f"b={other}")
    assert done.code == 0 and "a: " in done.out and "a + b" in done.out


@pytest.mark.parametrize("command", ["compile", "analyze", "tune"])
@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ([], "give one MODEL, or several"),
        (["m.onnx", "--model", "a=b.onnx"], "give one MODEL, or several"),
        (["--model", "b.onnx"], "NAME=MODEL"),
        (["--model", "=b.onnx"], "NAME=MODEL"),
        (["--model", "a="], "NAME=MODEL"),
        (["--model", "a=b.onnx", "--model", "a=c.onnx"], "two models are called 'a'"),
    ],
    ids=str,
)
def test_usage(invoke: Invoke, command: str, arguments: list[str], fragment: str) -> None:
    done = invoke(command, *arguments)
    assert done.code == 2 and fragment in done.err


def test_a_name_with_a_slash(invoke: Invoke, files: Files) -> None:
    done = invoke("compile", "--model", f"a/b={files.model}")
    assert done.code == 4 and "without '/'" in done.err
