"""Artifacts of this version and of the last are loaded, and others refused in words."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_edge
from tests.native.c_api import CModel, Failed
from tests.onnx_models import relative_error
from tests.runtime.golden.write import FOLDER, TARGETS, path_of
from tests.runtime.support import rewrite_artifact
from tvm_edge.runtime.artifact import FORMAT_VERSION

LAST, THIS = "0.1", "0.2"
ARTIFACT = 2  # TVM_EDGE_ARTIFACT_ERROR


def refused(path: Path, words: str) -> None:
    """By Python and by C, in the same words."""
    with pytest.raises(tvm_edge.ArtifactError, match=words) as caught:
        tvm_edge.load(path)
    with pytest.raises(Failed) as found:
        CModel(path)
    assert (str(found.value), found.value.status) == (str(caught.value), ARTIFACT)


def test_this_version_has_its_own() -> None:
    assert tvm_edge.__version__.startswith(f"{THIS}.")
    assert all(path_of(THIS, architecture).is_file() for architecture in TARGETS)


@pytest.mark.parametrize("version", [LAST, THIS])
def test_artifacts_of_versions_are_loaded(version: str) -> None:
    path = path_of(version)
    if not path.is_file():
        pytest.skip(f"{version} has none for {platform.machine()}")
    with np.load(FOLDER / "run.npz") as run:
        x, expected = {"data": run["data"]}, run["pooled"]
    for found in (tvm_edge.load(path).run(x), CModel(path).run(x, ["pooled"])):
        assert relative_error(found["pooled"], expected) < 1e-5


@pytest.mark.parametrize("architecture", sorted(TARGETS.keys() - {platform.machine()}))
def test_another_architecture_is_named(architecture: str) -> None:
    words = (
        f"is compiled for {architecture}, and this machine is {platform.machine()}; run it there"
    )
    refused(path_of(THIS, architecture), words)


@pytest.mark.parametrize("step", [-1, 1])
def test_another_format_is_named(tmp_path: Path, step: int) -> None:
    """No version wrote format 0: the first is 1."""

    def edit(manifest: dict[str, Any]) -> None:
        manifest["format_version"] = FORMAT_VERSION + step

    path = rewrite_artifact(path_of(THIS, "x86_64"), tmp_path / "other.tvme", edit)
    words = rf"has format {FORMAT_VERSION + step}, and this tvm-edge reads {FORMAT_VERSION}; "
    refused(path, words + r"export it again .* install the version 0\.2")
