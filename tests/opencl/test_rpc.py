"""TVM's own RPC server, on a device that this package gives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import rpc

from tests.opencl import programs
from tests.opencl.support import ROOT, child_environment, ramp
from tests.rpc.support import free_port


@pytest.fixture(scope="module", params=["fork", "no-fork"])
def session(request: pytest.FixtureRequest, device: Any) -> Iterator[rpc.RPCSession]:
    """A session of a server process, which serves it in a fork or in a process of its own."""
    pytest.importorskip("tornado")
    port = free_port()
    command = [sys.executable, "-m", "tvm.exec.rpc_server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--port-end", str(port + 1), "--silent"]
    command += ["--no-fork"] * (request.param == "no-fork")
    environment = child_environment({"TVM_USE_RUNTIME_LIB": 1})  # starts in half of the time
    server = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True)
    try:
        yield connect(server, port)
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # its own process for the server would stay behind
        server.wait(timeout=30)


def connect(server: subprocess.Popen[bytes], port: int) -> rpc.RPCSession:
    """A session as soon as the server listens."""
    import time

    deadline = time.monotonic() + 60
    while True:
        try:
            return rpc.connect("127.0.0.1", port, session_timeout=120)
        except (OSError, RuntimeError):
            if server.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kernels, exported."""
    path = tmp_path_factory.mktemp("library") / "two.so"
    programs.two_kernels().export_library(str(path))
    return path


@pytest.fixture(scope="module")
def module(session: rpc.RPCSession, library: Path) -> Any:
    """The library on the server; uploaded once, for a second upload would overwrite loaded code."""
    session.upload(str(library))
    return session.load_module(library.name)


def check(session: rpc.RPCSession, module: Any) -> None:
    device = session.device("opencl", 0)
    a = tvm.runtime.tensor(ramp(programs.N), device)
    b = tvm.runtime.empty((programs.N,), "float32", device)
    module["twice"](a, b)
    np.testing.assert_array_equal(b.numpy(), ramp(programs.N) * 2)


def test_a_library_is_uploaded_and_run(session: rpc.RPCSession, module: Any) -> None:
    check(session, module)


def test_the_remote_device_tells_of_itself(session: rpc.RPCSession, device: Any) -> None:
    remote = session.device("opencl", 0)
    assert remote.exist
    assert remote.device_name == device.device_name
    assert remote.max_threads_per_block == device.max_threads_per_block


def test_remote_times(session: rpc.RPCSession, module: Any) -> None:
    device = session.device("opencl", 0)
    a = tvm.runtime.tensor(ramp(programs.N), device)
    b = tvm.runtime.empty((programs.N,), "float32", device)
    result = module.time_evaluator("main", device, number=5, repeat=2)(a, b)
    assert len(result.results) == 2
    assert all(0 < seconds < 1 for seconds in result.results)


def test_large_tensors_travel(session: rpc.RPCSession) -> None:
    values = ramp(1 << 20)
    there = tvm.runtime.tensor(values, session.device("opencl", 0))
    np.testing.assert_array_equal(there.numpy(), values)


def test_a_session_survives_a_remote_error(session: rpc.RPCSession, module: Any) -> None:
    device = session.device("opencl", 0)
    wrong = tvm.runtime.empty((programs.N + 1,), "float32", device)
    with pytest.raises((RuntimeError, ValueError)):
        module["main"](wrong, wrong)
    with pytest.raises((RuntimeError, MemoryError)):
        tvm.runtime.empty((1 << 46,), "float32", device)
    check(session, module)
