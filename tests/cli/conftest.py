"""The command line in this process, and the files that its tests share."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_edge
from tests.onnx_models import random_input
from tests.runtime.support import rewrite_artifact
from tvm_edge.cli.main import main
from tvm_edge.host import CODEGEN_FEATURES, host_features


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Standard output as strict JSON: nothing else there, and no NaN."""

        def refuse(constant: str) -> Any:
            raise ValueError(f"{constant} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


Invoke = Callable[..., Outcome]


@pytest.fixture
def invoke(capfd: pytest.CaptureFixture[str], optimised: None) -> Invoke:
    """Run the command line; what C++ prints is caught too.

    Kernels are optimised: LLVM leaves the empty start-up function in others, TVM takes a library
    with one for its process's own, and warns where two are loaded.
    """

    def run(*arguments: object) -> Outcome:
        capfd.readouterr()
        try:
            main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as err:
            code = int(err.code or 0)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@dataclass(frozen=True)
class Files:
    """A model in every form that a user may hold."""

    model: Path
    artifact: Path
    inputs: Path
    other_cpu: Path


@pytest.fixture(scope="session")
def files(
    small_model: onnx.ModelProto,
    compiled_small: tvm_edge.CompiledModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> Files:
    """The small model as ONNX, as an artifact, as one for a CPU that this is not; an input."""
    folder = tmp_path_factory.mktemp("cli")
    model, inputs = folder / "small.onnx", folder / "inputs.npz"
    onnx.save(small_model, model)
    np.savez(inputs, data=random_input((1, 3, 16, 16)))
    artifact = compiled_small.export(folder / "small.tvme")
    lacking = sorted(CODEGEN_FEATURES - (host_features() or frozenset()))[0]

    def need_more(manifest: dict[str, Any]) -> None:
        manifest["target"]["features"].append(lacking)

    other = rewrite_artifact(artifact, folder / "other.tvme", need_more)
    assert zipfile.is_zipfile(other)
    return Files(model, artifact, inputs, other)
