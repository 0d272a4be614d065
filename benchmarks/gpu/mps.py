"""Some of a GPU's multiprocessors for a process, by NVIDIA's MPS.

Memory and caches are the whole GPU's, and no setting of the GPU is touched.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["share_of", "sliced"]


@contextmanager
def sliced() -> Iterator[None]:
    """Run MPS with folders of its own while this lasts."""
    with tempfile.TemporaryDirectory() as pipes, tempfile.TemporaryDirectory() as logs:
        os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": logs}
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=True)


def share_of(cores: int, whole: int) -> dict[str, str]:
    """Return the environment of a process on `cores` of `whole` multiprocessors.

    MPS rounds a share to even numbers of them.
    """
    percent = f"{min(100 * cores / whole + 0.1, 100):.1f}" if cores < whole else "100"
    return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percent}
