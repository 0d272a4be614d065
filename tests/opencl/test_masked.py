"""Tests of other files, where OpenCL ends at 1.2, as on Mali Midgard.

The library they run on lacks every later entry point, and its devices say they are 1.2.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.marks import in_full
from tests.opencl.support import MASKED, ROOT, Shim, build_shim, child_environment

# What needs the library's own name, no device, or a server is the same in both.
SAME = {"masked", "silence", "runtime_tier", "rpc"}
# Where the runtime calls something else on OpenCL 1.2: memory, queues, programs.
DIFFERENT = {"attributes", "host_access", "host_view", "memory", "modules", "streams"}
ALL = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}


@pytest.mark.parametrize(
    "chosen", [DIFFERENT, *in_full(ALL - SAME - DIFFERENT)], ids=["different", "the rest"]
)
def test_the_same_on_opencl_12(
    chosen: set[str], device: Any, real_library: str, shim_library: Path, tmp_path: Path
) -> None:
    if MASKED:
        pytest.skip("this is the masked run")
    masked = build_shim(tmp_path, masked=True)
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x"]
    # The parent conftest needs all of tvm-edge; a device machine may have TVM alone.
    command += ["-c", "/dev/null", "--rootdir", str(ROOT), "--confcutdir", str(here)]
    command += [str(here / f"test_{name}.py") for name in sorted(chosen)]
    changes = {
        "TVM_EDGE_TEST_OPENCL": "1.2",
        "TVM_EDGE_OPENCL_LIBRARY": masked,
        "SHIM_REAL": real_library,
    }
    done = subprocess.run(
        command, env=child_environment(changes), cwd=ROOT, capture_output=True, text=True
    )
    print(done.stdout[-4000:])
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_mask_masks(device: Any, tmp_path: Path, shim_library: Path) -> None:
    masked = Shim(build_shim(tmp_path, masked=True))._library
    for name in ("clCreateBuffer", "clCreateCommandQueue", "clEnqueueNDRangeKernel"):
        assert hasattr(masked, name)
    for name in ("clSVMAlloc", "clCreateCommandQueueWithProperties", "clSetKernelArgSVMPointer"):
        assert not hasattr(masked, name)
        assert MASKED or hasattr(Shim(shim_library)._library, name)
