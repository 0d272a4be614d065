"""Edges of a model's API: copies, masks, forks, queues, manifests that no compiler wrote."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_edge
from tests.marks import needs_opencl
from tests.onnx_models import conv_relu
from tests.runtime.support import held_up, in_forked_child, rewrite_artifact
from tvm_edge import ArtifactError, DeviceUnavailableError, InputError


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_model_says_how_it_is_copied(
    compiled_small: tvm_edge.CompiledModel, make: Callable[[Any], Any]
) -> None:
    with pytest.raises(InputError, match=r"model\.export\(path\).*tvm_edge\.load\(path\)"):
        make(compiled_small)


def test_masked_arrays_are_refused(
    compiled_small: tvm_edge.CompiledModel, image: np.ndarray
) -> None:
    """The model would read what the mask hides."""
    masked = np.ma.masked_array(image, mask=image > 0)
    with pytest.raises(InputError, match=r"masked array.*\.filled") as caught:
        compiled_small.run({"data": masked})
    assert caught.value.name == "data"
    compiled_small.run({"data": masked.filled(0)})


@pytest.mark.parametrize(
    ("key", "value"), [("format_version", True), ("format_version", 1.0), ("outputs", [])]
)
def test_manifests_that_no_compiler_wrote(
    artifact: Path, tmp_path: Path, key: str, value: object
) -> None:
    path = rewrite_artifact(
        artifact, tmp_path / "model.tvme", lambda manifest: manifest.update({key: value})
    )
    with pytest.raises(ArtifactError, match="damaged"):
        tvm_edge.load(path)


@needs_opencl
def test_opencl_after_a_fork_is_in_the_error_tree(tmp_path: Path, image: np.ndarray) -> None:
    model = tvm_edge.compile(conv_relu(), "opencl")
    path = model.export(tmp_path / "model.tvme")
    model.run({"data": image})
    for attempt in (
        lambda: tvm_edge.load(path).run({"data": image}),
        lambda: model.run({"data": image}),
        lambda: model.benchmark(repeat=1),
        lambda: model.on_device("opencl:0").run({"data": image}),
        lambda: model.export(tmp_path / "again.tvme", embed_programs=True),
    ):

        def refused(attempt: Callable[[], object] = attempt) -> None:
            with pytest.raises(DeviceUnavailableError, match="fork"):
                attempt()

        in_forked_child(refused)


def test_submissions_wait_for_room(
    compiled_small: tvm_edge.CompiledModel, image: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that is pending keeps a copy of its inputs: a hundred thousand filled memory."""
    expected = compiled_small.run({"data": image})["pooled"]
    futures, submitted = [], threading.Event()

    def one_more() -> None:
        futures.append(compiled_small.run_async({"data": image}, max_pending=3))
        submitted.set()

    thread = threading.Thread(target=one_more)
    with held_up(monkeypatch) as may_run:
        futures += [compiled_small.run_async({"data": image}, max_pending=3) for _ in range(3)]
        thread.start()
        assert not submitted.wait(0.2), "it did not wait"
        may_run.set()
    thread.join(30)
    for future in futures:
        np.testing.assert_array_equal(future.result()["pooled"], expected)


def test_a_callback_does_not_wait_for_its_own_thread(
    compiled_small: tvm_edge.CompiledModel, image: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[BaseException] = []
    done = threading.Event()

    def submit(_future: object) -> None:
        try:
            for _ in range(3):
                compiled_small.run_async({"data": image}, max_pending=2)
        except InputError as err:
            failed.append(err)
        done.set()

    with held_up(monkeypatch) as may_run:  # a callback of what has run is called here
        compiled_small.run_async({"data": image}).add_done_callback(submit)
        may_run.set()
        assert done.wait(30)
    assert "max_pending" in str(failed[0])
    with pytest.raises(InputError, match="max_pending"):
        compiled_small.run_async({"data": image}, max_pending=0)
