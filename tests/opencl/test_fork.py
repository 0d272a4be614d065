"""OpenCL does not survive fork(); a child says so instead of hanging."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

RunPython = Callable[..., str]

CHILD = """
import os, sys
import numpy as np
import tvm
import tvm_edge.opencl

def check(what, action):
    try:
        action()
    except RuntimeError as error:
        assert "fork" in str(error), error
    else:
        raise AssertionError(f"{what}: no error")

device = tvm.opencl(0)
if sys.argv[1] == "used":
    tensor = tvm.runtime.tensor(np.arange(8, dtype="float32"), device)
    stream = device.create_raw_stream()
pid = os.fork()
if pid == 0:
    if sys.argv[1] == "used":
        check("allocate", lambda: tvm.runtime.empty((4,), "float32", device))
        check("read", lambda: tensor.numpy())
        check("write", lambda: tensor.copyfrom(np.zeros(8, "float32")))
        check("sync", lambda: device.sync())
        check("stream", lambda: device.create_raw_stream())
        check("profile", lambda: tvm_edge.opencl.profile_start())
        # Freed in the child: nothing of the parent's driver is touched.
        del tensor
        device.free_raw_stream(stream)
    else:
        tensor = tvm.runtime.tensor(np.arange(8, dtype="float32"), device)
        assert tensor.numpy().sum() == 28
    print("child done", flush=True)
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
if sys.argv[1] == "used":
    assert tensor.numpy().sum() == 28
print("parent done")
"""


@pytest.mark.parametrize("before", ["used", "unused"])
def test_a_forked_child(device: Any, run_python: RunPython, before: str) -> None:
    """A child of a process that had used OpenCL gets an error; of one that had not, a device.

    Both end with exit code 0: nothing at the child's end waits for threads that only the parent
    has. The parent goes on as before.
    """
    assert run_python(CHILD, before).split("\n")[:2] == ["child done", "parent done"]
