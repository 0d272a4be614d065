"""The command line, with boards in place of this machine."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

import tvm_edge
from tests.cli.conftest import Invoke, invoke
from tests.rpc.conftest import KEY, Fleet
from tests.rpc.support import free_port

__all__ = ["invoke"]


def test_run_bench_and_profile(
    invoke: Invoke, fleet: Fleet, artifact: Path, image: np.ndarray, tmp_path: Path
) -> None:
    at = ("--rpc-tracker", fleet.tracker, "--rpc-key", KEY)
    np.savez(tmp_path / "in.npz", data=image)
    files = ("--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz")
    ran = invoke("run", artifact, *files, *at, "--json")
    assert ran.code == 0, ran.err
    assert [row["name"] for row in ran.data["outputs"]] == ["pooled"]
    expected = tvm_edge.load(artifact).run({"data": image})["pooled"]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["pooled"], expected)
    bench = invoke("bench", artifact, *at, "--repeat", 2, "--num-threads", 1, "--json")
    assert bench.code == 0 and (bench.data["repeat"], bench.data["num_threads"]) == (2, 1)
    profile = invoke("profile", artifact, *at, "--html", tmp_path / "report.html", "--json")
    assert profile.code == 0 and len(profile.data["kernels"]) == 2
    assert (tmp_path / "report.html").stat().st_size > 1000


def test_a_model_is_compiled_here(
    invoke: Invoke, fleet: Fleet, small_model: onnx.ModelProto, tmp_path: Path
) -> None:
    onnx.save(small_model, tmp_path / "small.onnx")
    at = ("--rpc-tracker", fleet.tracker, "--rpc-key", KEY)
    ran = invoke("run", tmp_path / "small.onnx", "--target", "llvm", *at, "--print-top", 1)
    assert ran.code == 0 and "pooled" in ran.out, ran.err
    foreign = '{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}'
    ran = invoke("run", tmp_path / "small.onnx", "--target", foreign, *at)
    assert ran.code in (4, 5), ran.err
    assert f"for aarch64, and board {KEY} is" in ran.err or "g++" in ran.err, "no cross-linker"


def test_devices_and_doctor(invoke: Invoke, fleet: Fleet) -> None:
    at = ("--rpc-tracker", fleet.tracker, "--rpc-key", KEY)
    shown = invoke("devices", *at)
    assert shown.code == 0 and "llvm:0" in shown.out and "TVM 0.27" in shown.out
    assert invoke("devices", *at, "--json").data["devices"][0]["target"] == "llvm"
    shown = invoke("doctor", *at)
    assert shown.code == 0 and "CPU clocks" in shown.out and "temperature" in shown.out


@pytest.mark.parametrize(
    ("arguments", "code", "fragment"),
    [
        (("devices", "--rpc-key", KEY), 4, "add --rpc-tracker HOST:PORT"),
        (("bench", "{artifact}", "--rpc-key", KEY), 4, "add --rpc-tracker HOST:PORT"),
        (("run", "{artifact}", "--rpc-tracker", "board"), 4, "HOST:PORT"),
        (("doctor", "--rpc-tracker", "127.0.0.1:{free}", "--rpc-key", KEY), 5, "no RPC tracker"),
        (("rpc-server", "--key", KEY), 4, "without --tracker"),
        (("rpc-server", "--port", "{taken}"), 5, "no port from .* is free"),
        (("rpc-server", "--host", "192.0.2.1"), 5, "an address of this machine"),
    ],
)
def test_wrong_options(
    invoke: Invoke, artifact: Path, arguments: tuple[str, ...], code: int, fragment: str
) -> None:
    before = set(psutil.Process().children())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        filled = [a.format(artifact=artifact, free=free_port(), taken=port) for a in arguments]
        done = invoke(*filled)
    assert done.code == code and re.search(fragment, done.err), done.err
    # One of another test may have ended meanwhile.
    assert set(psutil.Process().children()) <= before, "no process is left"


def test_the_help_says_what_is_not_secured(invoke: Invoke) -> None:
    assert "no passwords and no encryption" in " ".join(invoke("rpc-server", "--help").out.split())
