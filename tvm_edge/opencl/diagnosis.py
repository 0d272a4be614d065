"""Diagnosis of OpenCL, from outside: a broken driver ends the process that asks it.

``python -m tvm_edge.opencl.diagnosis`` prints what this process sees as JSON; :func:`diagnose`
runs that in a process of its own and explains the result.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Finding", "diagnose", "explain"]

_TIMEOUT = 60  # seconds; a driver may wait for hardware that does not answer
_DRIVER = "apt-get install pocl-opencl-icd (OpenCL on the CPU), or the GPU vendor's OpenCL driver"


@dataclass(frozen=True)
class Finding:
    """Result of a diagnosis.

    Attributes
    ----------
    usable : bool
    broken : bool
        Something is installed, and does not work.
    found : str
    command : str
        Command that mends it; empty if nothing is wrong.
    """

    usable: bool
    broken: bool
    found: str
    command: str = ""


def diagnose() -> Finding:
    """Load the runtime and the drivers in another process, and say what came of it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tvm_edge.opencl.diagnosis"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Enough of TVM for devices, in half the time.
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
    )
    try:
        out, err = process.communicate(timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Finding(
            False,
            True,
            f"a driver did not answer within {_TIMEOUT} s (drivers: {_icd_files() or 'none'})",
            "restart the machine, or remove that driver's .icd file",
        )
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        return Finding(
            False,
            True,
            f"a driver ended the process that asked it ({name}; drivers: {_icd_files()})",
            "remove that driver's .icd file, or choose another with OCL_ICD_FILENAMES",
        )
    if process.returncode != 0:
        reason = (err.strip().splitlines() or ["no message"])[-1]
        return Finding(False, True, reason, "pip install --force-reinstall tvm-edge")
    return explain(json.loads(out))


def explain(seen: dict[str, Any]) -> Finding:
    """The finding for what a process saw: the runtime's status, complaints and advice."""
    devices = seen["devices"]
    used = [device for device in devices if device["used"]]
    trouble = "".join(f"; {complaint}" for complaint in seen["complaints"])
    if used:
        listed = ", ".join(f"{d['name']} ({d['type']}, {d['version'].strip()})" for d in used)
        found = f"{listed} through {seen['library']}{trouble}"
        advice = seen["advice"] or "install that driver again, or remove its .icd file"
        return Finding(True, bool(trouble), found, advice if trouble else "")
    if devices:
        return Finding(False, True, seen["error"], "unset TVM_EDGE_OPENCL, or name one of these")
    if seen["library"]:
        return Finding(False, bool(trouble), seen["error"] + trouble, seen["advice"] or _DRIVER)
    if os.environ.get("TVM_EDGE_OPENCL_LIBRARY"):
        return Finding(False, True, seen["error"], "unset TVM_EDGE_OPENCL_LIBRARY")
    return Finding(
        False, False, seen["error"], f"apt-get install ocl-icd-libopencl1; then {_DRIVER}"
    )


def _icd_files() -> str:
    return ", ".join(sorted(glob.glob("/etc/OpenCL/vendors/*.icd")))


def _look() -> dict[str, Any]:
    """Return this process's view: the runtime's status and what is wrong around it."""
    from tvm_edge import (
        opencl,
        runtime_tier,  # noqa: F401  loads the runtime, unless autoload is off
    )

    if os.environ.get("TVM_DEVICE_BACKEND_AUTOLOAD") == "0":
        raise SystemExit("TVM_DEVICE_BACKEND_AUTOLOAD=0 keeps OpenCL from being loaded; unset it")
    opencl.autoload()
    complaints = []
    for icd in sorted(glob.glob("/etc/OpenCL/vendors/*.icd")):
        driver = Path(icd).read_text(errors="replace").strip()
        try:
            ctypes.CDLL(driver)
        except OSError as err:
            complaints.append(f"{icd} names a driver that does not load: {err}")
    advice = ""
    for node in sorted(glob.glob("/dev/dri/renderD*")) + glob.glob("/dev/mali0"):
        if not os.access(node, os.R_OK | os.W_OK):
            complaints.append(f"this user may not open {node}")
            advice = "sudo usermod -aG render,video $USER, and log in again"
    return {**opencl.status(), "complaints": complaints, "advice": advice}


if __name__ == "__main__":
    print(json.dumps(_look()))
