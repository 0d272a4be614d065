"""Values of environment variables that are not allowed, named where they are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tvm_edge
from tests.onnx_models import conv_relu, random_input
from tests.opencl import support

ARTIFACT = "small.tvme"


def compiles() -> None:
    tvm_edge.compile(conv_relu(), "opencl")


def runs() -> None:
    tvm_edge.load(ARTIFACT).run({"data": random_input((1, 3, 16, 16))})


@pytest.fixture(scope="module")
def artifact(device: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for this process's device."""
    path = tmp_path_factory.mktemp("artifact") / ARTIFACT
    return tvm_edge.compile(conv_relu(), "opencl").export(path)


@pytest.mark.parametrize("use", [tvm_edge.devices, compiles, runs])
@pytest.mark.parametrize(
    ("variable", "allowed"),
    [
        ("TVM_EDGE_OPENCL_MEMORY", "buffer or svm"),
        ("TVM_EDGE_OPENCL_COMMAND_BUFFER", "0 or 1"),
        ("TVM_EDGE_OPENCL_IN_FLIGHT", "a positive whole number"),
        ("TVM_EDGE_OPENCL_CACHE_SIZE", "a positive whole number"),
    ],
)
def test_a_wrong_variable_is_named(
    artifact: Path, variable: str, allowed: str, use: Callable[[], object]
) -> None:
    """Where it is read, and not as a failure of the model."""
    told = f"the environment variable {variable} is wrong, and must be {allowed}"
    with support.worker({variable: "wrong"}) as started:
        started(os.chdir, artifact.parent)
        with pytest.raises(tvm_edge.InputError, match=f"^{told}") as caught:
            started(use)
    error = caught.value
    assert (error.name, error.expected, error.got) == (variable, allowed, "wrong")


@pytest.mark.skipif(not support.MASKED, reason="the device has shared virtual memory")
def test_shared_memory_that_the_device_lacks_is_refused(on_shim: dict[str, object]) -> None:
    lacking = {**on_shim, "TVM_EDGE_OPENCL_MEMORY": "svm"}
    told = "TVM_EDGE_OPENCL_MEMORY is svm, and must be buffer: OpenCL device"
    with (
        support.worker(lacking) as shimmed,
        pytest.raises(tvm_edge.InputError, match=told),
    ):
        shimmed(tvm_edge.devices)
