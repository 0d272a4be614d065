"""Run programs on the emulated board."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tests.board.root import CannotBuild, board_root

__all__ = ["BOARD", "Board", "assert_close"]

BOARD = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}
_ENTER = Path(__file__).with_name("enter.sh")
_CHROOT = shutil.which("chroot", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or "chroot"
_ENVIRONMENT = {
    "HOME": "/root",
    "PATH": "/opt/bin",  # Python, and the linker that pocl calls
    "QEMU_CPU": "cortex-a72",
    "TVM_USE_RUNTIME_LIB": "1",
    "TVM_EDGE_OPENCL_CACHE": "0",
    "POCL_EXTRA_BUILD_FLAGS": "-cl-opt-disable",
    "PYTHONUNBUFFERED": "1",
}


class Board:
    """An RK3399 as far as its CPU goes, with Debian, TVM's runtime and this checkout.

    Its network is this machine's: a port that a program listens on there is one of ``127.0.0.1``.

    Parameters
    ----------
    shared : Path
        A folder that the board sees under the same name, below ``/tmp``.

    Raises
    ------
    CannotBuild
        What it needs is not on this machine.
    """

    def __init__(self, shared: Path) -> None:
        self.shared = shared
        self._running = ExitStack()
        self.root = self._running.enter_context(board_root())
        done = subprocess.run(self._command(["/usr/bin/python3", "-c", ""]), **self._pipes())
        if done.returncode != 0:
            self._running.close()
            raise CannotBuild(
                "the board does not start (it needs Linux 6.7 and user namespaces): "
                + done.stderr.strip()[-300:]
            )

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def run(
        self,
        command: Sequence[object],
        *,
        environment: Mapping[str, str] | None = None,
        timeout: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; what it started ends with it.

        Parameters
        ----------
        command : sequence
            ``python3`` and what else is on the board's PATH, or an absolute path.
        environment : mapping of str to str, optional
            Added to the board's own.
        timeout : float
            Seconds.
        """
        return subprocess.run(self._command(command, environment), timeout=timeout, **self._pipes())

    def start(
        self, command: Sequence[object], *, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a program; it and what it started are killed when the board is left.

        Its output, errors too, is read from ``stdout``.
        """
        process = subprocess.Popen(
            self._command(command, environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._running.callback(self.stop, process)
        return process

    @staticmethod
    def stop(process: subprocess.Popen[str]) -> None:
        """Kill what :meth:`start` returned with all that it started, and wait for their end."""
        assert process.stdout is not None
        if process.stdout.closed:
            return
        process.kill()  # --kill-child: and so ends the first process of its namespace, and all
        process.communicate(timeout=60)  # none of them has the pipe any more

    def _command(
        self, command: Sequence[object], environment: Mapping[str, str] | None = None
    ) -> list[str]:
        program, *arguments = map(str, command)
        if "/" not in program:
            program = f"/opt/bin/{program}"
        changes = [f"{k}={v}" for k, v in {**_ENVIRONMENT, **(environment or {})}.items()]
        return [
            *("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork"),
            *("--kill-child", "sh", str(_ENTER), str(self.root), str(self.shared)),
            # By its path: env looks for programs on the board's PATH.
            *("env", "-i", *changes, _CHROOT, str(self.root), program, *arguments),
        ]

    @staticmethod
    def _pipes() -> dict[str, object]:
        return {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """To 1e-4 of each tensor's largest value; integers are equal."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        limit = 1e-4 * np.abs(value).max() if value.dtype.kind == "f" else 0
        np.testing.assert_allclose(found[name], value, rtol=0, atol=limit, err_msg=name)
