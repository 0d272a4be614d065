"""Reports of nvcc on kernels are read; the largest tiles do not spill."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from benchmarks.gpu.compiled import Kernel, main, ptxas_output, read_ptxas, split_kernels, table
from tests.onnx_models import make_model
from tvm_edge.compiler import driver
from tvm_edge.compiler.build import build
from tvm_edge.compiler.options import Options
from tvm_edge.hardware import resolve_target
from tvm_edge.lowering.deep_stack import on_deep_stack
from tvm_edge.tuning.tasks import extract_tasks

TARGET = "jetson-orin-nano"
TILE = "rows=64 columns=224 down=4 beside=7 warps=1 depth=8 stages=2 cached=0 patch=0 parts=1"
SOURCE = """#include <cuda.h>
extern "C" __global__ void __launch_bounds__(64) first_kernel(float* x);
extern "C" __global__ void __launch_bounds__(256) second_kernel(float* x);
struct used {};
extern "C" __global__ void __launch_bounds__(64) first_kernel(float* x) {
  __shared__ float y[8];
}
extern "C" __global__ void __launch_bounds__(256) second_kernel(float* x) {
  x[0] = 1;
}
"""
SAID = """ptxas info    : Compiling entry function 'second_kernel' for 'sm_87'
ptxas info    : Function properties for second_kernel
    48 bytes stack frame, 44 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 576 bytes smem, 368 bytes cmem[0]
ptxas info    : Compiling entry function 'first_kernel' for 'sm_87'
ptxas info    : Function properties for first_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 368 bytes cmem[0]
"""


def test_sources_are_split_and_answers_are_read() -> None:
    head, kernels = split_kernels(SOURCE)
    assert head.startswith("#include") and "struct used" in head and "__global__" not in head
    assert {name: items for name, (items, _) in kernels.items()} == {
        "first_kernel": 64,
        "second_kernel": 256,
    }
    assert "y[8]" in kernels["first_kernel"][1] and "x[0]" not in kernels["first_kernel"][1]
    second, first = read_ptxas(SAID)
    assert second == Kernel("second_kernel", 0, 255, 48, 44, 576)
    assert first == Kernel("first_kernel", 0, 8)


def test_rows_of_a_file_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is compiled of what the file has."""
    row = {"kernels": 7, "registers": 96, "shared": 2048, "spilling": [], "over": []}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"jetson-orin-nano mixed vgg16": row}))
    chosen = ["--targets", "jetson-orin-nano", "--precision", "mixed", "--networks", "vgg16"]
    main([*chosen, "--json", str(path)])
    assert capsys.readouterr().out.split()[:5] == ["jetson-orin-nano", "mixed", "vgg16", "7", "96"]


def test_what_a_device_cannot_launch_is_counted() -> None:
    fits = Kernel("k", 256, 255, shared=92 << 10)
    assert fits.fits("sm_87") and not fits.fits("sm_75")
    assert not Kernel("k", 512, 255).fits("sm_87")
    row = {"kernels": 2, "registers": 255, "shared": 1024, "spilling": [], "over": [{}]}
    cells = ["sm_75", "mixed", "net", "2", "255", "1", "–", "–", "1"]
    assert table({"sm_75 mixed net": row}) == [cells]


@pytest.mark.full
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize("kernel", [3, 5])
def test_a_tile_of_many_loads_does_not_spill(kernel: int) -> None:
    """On Orin the tile of 224 pixels, which brings 14 units of them in a step."""
    made = _convolution(48, 64, kernel, TILE)
    assert made.registers > 200 and made.spilled == 0


def _convolution(channels: int, filters: int, kernel: int, knobs: str) -> Kernel:
    """The kernel of a convolution of 35 by 35 by a tile, as nvcc compiles it for Orin."""
    weights = {"w": np.ones((filters, channels, kernel, kernel), "float32")}
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[kernel // 2] * 4)
    model = make_model([node], {"x": (1, channels, 35, 35)}, ["y"], weights)
    (task,) = extract_tasks(model, resolve_target(TARGET), precision="float16")
    config = next(config for config in task.configs if config.knobs == knobs)
    options = Options(precision="float16", fallback="none")
    done = driver.lowered(model, TARGET, options, configs={task.workload: config})
    library = on_deep_stack(lambda: build(done.module, done.resolved))
    (source,) = library.device_sources()
    (made,) = (each for each in read_ptxas(ptxas_output(source, "sm_87")) if "conv" in each.name)
    return made


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_operands_of_one_step_stay_in_registers() -> None:
    """A product over 64 channels, one step of eight blocks."""
    made = _convolution(64, 64, 1, TILE)
    assert made.stack == 0 and made.spilled == 0
