"""Kernels of 8-bit numbers on the emulated board, with dot products and without, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.board.board import BOARD, Board
from tests.schedules.int8_cases import SDOT, SMMLA, SMULL, WORKLOADS, Case, case
from tvm_edge.hardware import DeviceSpec
from tvm_edge.lowering import cpu_pipeline
from tvm_edge.lowering.linker import find_linker
from tvm_edge.schedules.cpu import schedule
from tvm_edge.schedules.cpu.dot_products import DOT_PRODUCTS
from tvm_edge.schedules.int8 import BLOCK, DOT

pytestmark = pytest.mark.board

ON_THE_BOARD = """
import sys
import numpy as np
import tvm

library, inputs, outputs = sys.argv[1:]
module = tvm.runtime.load_module(library)
arrays = np.load(inputs)
found = {}
for name in sorted({key.split(".")[0] for key in arrays}):
    tensors = [tvm.runtime.tensor(arrays[f"{name}.{i}"]) for i in range(3)]
    module[name](*tensors)
    found[name] = tensors[-1].numpy()
np.savez(outputs, **found)
"""


FEATURES = {"smull": [], "sdot": ["+dotprod"], "smmla": ["+dotprod", "+i8mm"]}


@pytest.mark.parametrize("spec", [SDOT, SMMLA, SMULL], ids=lambda spec: spec.dot_product)
def test_sums_are_exact(board: Board, spec: DeviceSpec) -> None:
    """With filters in groups of four, and in others where products are added up in 16 bits."""
    made: dict[str, Case] = {}
    for name, workload in WORKLOADS.items():
        made[name] = case(workload, "int8")
        group = DOT_PRODUCTS[spec.dot_product].filter_group(workload)
        if group != DOT:
            made[f"{name}_{group}"] = case(workload, "int8", group=group)
    assert len(made) - len(WORKLOADS) == {"sdot": 0, "smmla": 5}.get(
        spec.dot_product, len(made) // 2
    )
    functions = {
        name: schedule(own.func, spec).func.with_attr("global_symbol", name)
        for name, own in made.items()
    }
    cpu_pipeline.register()
    features = FEATURES[spec.dot_product]
    target = tvm.target.Target({**BOARD, "mattr": ["+neon", *features]})
    with target:
        built = tvm.tirx.build(tvm.IRModule(functions), target=target, pipeline=cpu_pipeline.CPU)
    library = board.shared / f"kernels_{spec.dot_product}.so"
    built.export_library(str(library), fcompile=find_linker("aarch64"))
    inputs, outputs = board.shared / "inputs.npz", board.shared / "outputs.npz"
    named = {f"{name}.{i}": a for name, own in made.items() for i, a in enumerate(own.arrays)}
    np.savez(inputs, **named)
    command = ["python3", "-c", ON_THE_BOARD, library, inputs, outputs]
    cpu = "max" if features else "cortex-a53"
    done = board.run(command, environment={"QEMU_CPU": cpu})
    assert done.returncode == 0, done.stderr[-3000:]
    found = np.load(outputs)
    for name, own in made.items():
        count = own.expected.shape[1] * BLOCK
        real = np.arange(count).reshape(1, -1, 1, 1, BLOCK) < WORKLOADS[name.split("_")[0]].filters
        assert np.array_equal(np.where(real, found[name], 0), np.where(real, own.expected, 0)), name
