"""Which program links, for this machine and for another; the export says which is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest

import tvm_edge
from tvm_edge import ArtifactError, MissingDependencyError
from tvm_edge.host import machine
from tvm_edge.lowering.linker import find_linker

OTHER = "x86_64" if machine() == "aarch64" else "aarch64"
TRIPLE = f"{OTHER}-linux-gnu"
SETTING = f"CXX_{OTHER}_linux_gnu"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH, empty; no compiler is named, and there is no Zig."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for variable in ("CXX", "CC", SETTING):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    return folder


def put(folder: Path, name: str, script: str = "exit 0") -> Path:
    """A program in a folder."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_none(tools: Path) -> None:
    with pytest.raises(MissingDependencyError) as caught:
        find_linker(OTHER)
    package = f"g++-{TRIPLE}".replace("_", "-")
    for fragment in (OTHER, f"apt-get install {package},", "pip install 'tvm-edge[cross]'"):
        assert fragment in str(caught.value)
    with pytest.raises(MissingDependencyError, match=r"apt-get install g\+\+,"):
        find_linker(machine())


def test_debians_cross_compiler(tools: Path) -> None:
    gcc = put(tools, f"{TRIPLE}-gcc")
    assert find_linker(OTHER).command == (str(gcc),)
    gxx = put(tools, f"{TRIPLE}-g++")
    assert find_linker(OTHER).command == (str(gxx),)


def test_this_machines_compiler_is_not_for_another(tools: Path) -> None:
    gxx = put(tools, "g++")
    assert find_linker(machine()).command == (str(gxx),)
    with pytest.raises(MissingDependencyError):
        find_linker(OTHER)


def test_zig_where_there_is_no_compiler(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "ziglang" or None)
    for architecture in (OTHER, machine()):
        *python, language, flag, target = find_linker(architecture).command
        assert python == [sys.executable, "-m", "ziglang"]
        assert (language, flag, target) == ("c++", "-target", f"{architecture}-linux-gnu.2.28")
    put(tools, f"{TRIPLE}-g++")
    assert "ziglang" not in find_linker(OTHER).command


@pytest.mark.parametrize(
    ("variable", "value", "taken"),
    [
        (SETTING, "my-cc --sysroot='/a b'", ("my-cc", "--sysroot=/a b")),
        ("CXX", f"/sdk/{OTHER}-poky-linux-g++ -O1", (f"/sdk/{OTHER}-poky-linux-g++", "-O1")),
        ("CC", f"{OTHER}-poky-linux-gcc", (f"{OTHER}-poky-linux-gcc",)),
        ("CXX", f"{machine()}-linux-gnu-g++", None),
        ("CXX", "clang++", None),
        (SETTING, "", None),
    ],
)
def test_the_environment_names_one(
    tools: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    taken: tuple[str, ...] | None,
) -> None:
    default = put(tools, f"{TRIPLE}-g++")
    monkeypatch.setenv(variable, value)
    assert find_linker(OTHER).command == (taken or (str(default),))


@pytest.mark.parametrize("architecture", [OTHER, machine()])
@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "cannot be started"),
        ("exit 3", "it ended with 3"),
        ("echo; echo no such library; exit 1", "failed: no such library;"),
    ],
)
def test_one_that_does_not_link(
    tools: Path,
    monkeypatch: pytest.MonkeyPatch,
    architecture: str,
    script: str | None,
    said: str,
) -> None:
    path = put(tools, "linker", script) if script else tools / "absent"
    variable = "CXX" if architecture == machine() else SETTING
    monkeypatch.setenv(variable, f"{path} --fast")
    with pytest.raises(ArtifactError, match=said) as caught:
        find_linker(architecture)("library.so", ["kernels.o"])
    assert str(path) in str(caught.value) and f"variable {variable})" in str(caught.value)


def test_a_command_with_arguments_links(
    compiled_small: tvm_edge.CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = put(tmp_path, "wrapper", f'echo "$1" > {tmp_path}/seen; shift; exec g++ "$@"')
    monkeypatch.setenv("CXX", f"{program} --first")
    path = compiled_small.export(tmp_path / "model.tvme")
    assert (tmp_path / "seen").read_text() == "--first\n"
    assert tvm_edge.load(path).outputs == compiled_small.outputs


@pytest.mark.full  # Zig builds its stubs of the C library when it first links: minutes
def test_zig_links(
    small_model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ziglang", reason="pip install 'tvm-edge[cross]'")
    monkeypatch.setenv("PATH", "/nonexistent")
    for variable in ("CXX", "CC", SETTING):
        monkeypatch.delenv(variable, raising=False)
    here = tvm_edge.compile(small_model, "llvm").export(tmp_path / "here.tvme")
    assert tvm_edge.load(here).outputs
    there = {"kind": "llvm", "mtriple": TRIPLE}
    model = tvm_edge.compile(small_model, there)
    with pytest.raises(ArtifactError, match=OTHER):
        tvm_edge.load(model.export(tmp_path / "there.tvme"))
