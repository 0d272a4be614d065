"""Patches of pixels on tensor cores: where they lie in local memory, and who has them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.schedules.gpu.harness import ORIN
from tvm_edge.hardware import resolve_target
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.tensor_conv import TensorConv
from tvm_edge.schedules.gpu.tensor_patch import PATCH, patch_units
from tvm_edge.schedules.gpu.tensor_tile import choose_tensor_tile, possible_tensor_tiles

COMPILER = shutil.which("g++") or shutil.which("c++")

CASES = (
    # columns, patch, kernel, dilation, size of the result
    (112, 8, (3, 3), (1, 1), (20, 21)),
    (56, 14, (3, 3), (1, 1), (9, 28)),
    (64, 4, (5, 2), (2, 3), (17, 5)),
    (224, 28, (1, 7), (1, 1), (8, 30)),
)

_PROGRAM = """
#include <cstdio>
#define __device__
#define __forceinline__ inline
%s
template <class P> void write(int kh, int kw, int dh, int dw, int columns) {
  std::printf("case %%d %%d\\n", P::UNITS, P::BYTES);
  for (int number = 0; number < P::ALL; number++) {
    const P at(P::ALL + number, 1, 2);
    std::printf("patch %%d %%d %%d\\n", at.number, at.top, at.left);
  }
  for (int i = 0; i < P::UNITS; i++)
    std::printf("copied %%d %%d %%d\\n", i / P::SPAN, i %% P::SPAN,
                P::place(i / P::SPAN, i %% P::SPAN));
  for (int q = 0; q < columns; q++)
    for (int y = 0; y < kh; y++)
      for (int x = 0; x < kw; x++)
        std::printf("read %%d %%d %%d %%d\\n", q, y, x,
                    P::place(q / P::COLUMNS_OUT, q %% P::COLUMNS_OUT) + P::place(y * dh, x * dw));
}
int main() {
%s}
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[list[list[str]]]:
    """The lines of each case that the CUDA C, compiled for the CPU, writes."""
    if COMPILER is None:
        pytest.skip("no C++ compiler on PATH")
    calls = []
    for columns, patch, (kh, kw), (dh, dw), (lines, across) in CASES:
        of = f"tvm_edge_patch<{columns}, {patch}, {kh}, {kw}, {dh}, {dw}, {lines}, {across}>"
        calls.append(f"  write<{of}>({kh}, {kw}, {dh}, {dw}, {columns});\n")
    folder: Path = tmp_path_factory.mktemp("patch")
    (folder / "patch.cc").write_text(_PROGRAM % (PATCH, "".join(calls)))
    command = [COMPILER, "-std=c++17", "-w", "-o", str(folder / "patch"), str(folder / "patch.cc")]
    subprocess.run(command, check=True)
    ran = subprocess.run([folder / "patch"], check=True, capture_output=True, text=True)
    cases = ran.stdout.split("case ")[1:]
    return [[line.split() for line in case.splitlines()] for case in cases]


def numbers(case: list[list[str]], kind: str) -> Iterator[tuple[int, ...]]:
    return (tuple(map(int, line[1:])) for line in case if line[0] == kind)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_each_tap_reads_its_pixel(number: int, written: list[list[list[str]]]) -> None:
    columns, patch, kernel, dilation, (lines, across) = CASES[number]
    case = written[number]
    units, nbytes = map(int, case[0])
    workload = ConvWorkload(1, 8, lines, across, 16, kernel, (1, 1), (0,) * 4, dilation, 1)
    conv = TensorConv.of(workload, "float16")
    assert (units, nbytes) == (lambda u, p: (u, 16 * p))(
        *patch_units(conv, columns // patch, patch)
    )
    copied = {place: (line, column) for line, column, place in numbers(case, "copied")}
    assert len(copied) == units and max(copied) < nbytes // 16
    read: dict[tuple[int, int], list[int]] = {}
    for pixel, y, x, place in numbers(case, "read"):
        expected = pixel // patch + y * dilation[0], pixel % patch + x * dilation[1]
        assert copied[place] == expected
        read.setdefault((y, x), []).append(place)
    for places in read.values():  # of the eight rows of a matrix each has its banks
        for first in range(0, columns, 8):
            assert len({place % 8 for place in places[first : first + 8]}) == 8
    begins = [
        (1, top - 1, left - 2)
        for top in range(0, lines, columns // patch)
        for left in range(0, across, patch)
    ]
    assert list(numbers(case, "patch")) == begins


def workload_of(channels: int, size: int, filters: int, kernel: int, stride: int) -> ConvWorkload:
    around = (kernel // 2,) * 4
    window = ((kernel, kernel), (stride, stride), around, (1, 1), 1)
    return ConvWorkload(1, channels, size, size, filters, *window)


@pytest.mark.parametrize(
    ("workload", "chosen"),
    [
        (workload_of(64, 56, 64, 3, 1), True),
        (workload_of(128, 28, 32, 3, 1), True),
        (workload_of(256, 56, 256, 3, 1), False),
        (workload_of(64, 56, 64, 1, 1), False),
        (workload_of(64, 56, 128, 3, 2), False),
    ],
    ids=["64x56", "few filters", "many", "1x1", "strided"],
)
def test_few_channels_have_patches(workload: ConvWorkload, chosen: bool) -> None:
    conv = TensorConv.of(workload, "float16")
    assert bool(choose_tensor_tile(conv, ORIN).patch) is chosen
    turing = resolve_target({"kind": "cuda", "arch": "sm_75"}).spec
    assert not any(tile.patch for tile in possible_tensor_tiles(conv, turing))
