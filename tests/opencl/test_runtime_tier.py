"""Exported libraries run where only TVM's runtime library is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.opencl import programs

BOARD = """
import sys
import numpy as np
import tvm
assert tvm.base._RUNTIME_ONLY
module = tvm.runtime.load_module(sys.argv[1])
device = tvm.opencl(0)
a = tvm.runtime.tensor(np.arange(64, dtype="float32"), device)
b = tvm.runtime.empty((64,), "float32", device)
module["main"](a, b)
np.testing.assert_array_equal(b.numpy(), np.arange(64) + 1)
assert module.time_evaluator("main", device, number=3)(a, b).mean > 0
print("tvm.relax" in sys.modules, "tvm_edge.compiler" in sys.modules)
"""


def test_the_runtime_library_is_enough(
    device: Any, tmp_path: Path, run_python: Callable[..., str]
) -> None:
    programs.add_one().export_library(str(tmp_path / "add_one.so"))
    output = run_python(BOARD, tmp_path / "add_one.so", TVM_USE_RUNTIME_LIB="1")
    assert output.split() == ["False", "False"]
