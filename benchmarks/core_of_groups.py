"""Where a CUDA device runs the groups of a launch: ``python -m benchmarks.core_of_groups``.

For grids of several sizes, of groups of 224 work-items with little and with much local memory: how
many cores the first 112, 128 and 132 groups are on, and how many of them are on one core at the
most. Groups write down their core's number themselves, and whether all of them did is checked.
:mod:`tvm_edge.schedules.group_loops` rests on it. Needs CuPy.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from benchmarks.machine import describe_machine

_SOURCE = r"""
extern "C" __global__ void __launch_bounds__(224) cores(unsigned* core, float* result, int steps) {
  __shared__ float shared[%(floats)d];
  unsigned number;
  asm volatile("mov.u32 %%0, %%smid;" : "=r"(number));
  if (threadIdx.x == 0) core[blockIdx.x] = number + 1;
  float sums[%(sums)d];
  for (int i = 0; i < %(sums)d; ++i) sums[i] = threadIdx.x * i;
  shared[threadIdx.x] = sums[1];
  __syncthreads();
  for (int step = 0; step < steps; ++step)
    for (int i = 0; i < %(sums)d; ++i)
      sums[i] = sums[i] * 1.0001f + shared[(threadIdx.x + step) %% 224];
  float total = 0;
  for (int i = 0; i < %(sums)d; ++i) total += sums[i];
  if (total == 12345.f) result[0] = total;
}
"""
_KINDS = {"24 kB of local memory": (6000, 60), "0.9 kB": (224, 8)}
_GRIDS = (128, 132, 200, 260, 263, 264, 265, 300, 396, 400, 528, 800, 1400)
_FIRST = (112, 128, 132)
_STEPS = 200  # of work: longer than a grid takes to be handed out


def cores_of(kernel: Any, groups: int) -> list[int]:
    """The core of each group of a launch."""
    import cupy

    core, result = cupy.zeros(groups, "uint32"), cupy.zeros(1, "float32")
    kernel((groups,), (224,), (core, result, _STEPS))
    found: list[int] = core.get().tolist()
    if not all(found):
        raise SystemExit(f"{found.count(0)} of {groups} groups did not run")
    return found


def main() -> None:
    """Measure and print."""
    try:
        import cupy
    except ImportError:
        raise SystemExit("CuPy is not installed; pip install cupy-cuda13x") from None

    print(json.dumps(describe_machine()))
    for kind, (floats, sums) in _KINDS.items():
        kernel = cupy.RawKernel(_SOURCE % {"floats": floats, "sums": sums}, "cores")
        print(f"{kind}, {kernel.num_regs} registers")
        for groups in _GRIDS:
            found = cores_of(kernel, groups)
            cells = [
                f"{len(set(found[:first]))} cores, {max(Counter(found[:first]).values())} on one"
                for first in _FIRST
            ]
            print(f"| {groups} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
