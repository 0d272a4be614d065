"""Runs the kernels of two modules and prints what the program store did, as JSON.

``python cache_child.py FOLDER [PROGRAMS]``: FOLDER holds `programs.module_bytes` of modules with
one kernel each, called like the file, that adds one; PROGRAMS what `save_programs` gave. Needs
TVM's runtime tier only.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi

import tvm_edge.opencl


def run_both(folder: str | Path, programs_file: str | Path | None = None) -> dict[str, int]:
    """Run both kernels, check what they compute; the program store's counts."""
    if programs_file:
        tvm_edge.opencl.load_programs(Path(programs_file).read_bytes())
    load = tvm_ffi.get_global_func("ffi.Module.load_from_bytes.opencl")
    values = np.arange(64, dtype="float32")
    a = tvm.runtime.tensor(values, tvm.opencl(0))
    b = tvm.runtime.empty((64,), "float32", tvm.opencl(0))
    for file in sorted(Path(folder).iterdir()):
        module = load(file.read_bytes())
        b.copyfrom(np.zeros(64, "float32"))
        module[file.name](ctypes.c_void_p(a.data_ptr()), ctypes.c_void_p(b.data_ptr()), 4, 16)
        np.testing.assert_array_equal(b.numpy(), values + 1)
    return tvm_edge.opencl.program_stats()


if __name__ == "__main__":
    print(json.dumps(run_both(*sys.argv[1:])))
