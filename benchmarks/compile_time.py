"""What parallel fusion costs a compilation: ``python -m benchmarks.compile_time``.

The processor's time of ``tvm_edge.compile`` with ``parallel_fusion`` off and ``"auto"``, in turns
in one process, for a GPU that need not be there, whose driver compiles OpenCL later. The least of
``--rounds`` counts.
"""

from __future__ import annotations

import argparse
import json
from time import process_time

from benchmarks.machine import describe_machine

_NETWORKS = ("squeezenet1_0", "googlenet", "inception_v3", "nasnet_mobile")
_MODES: tuple[str | bool, ...] = (False, "auto")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", default=list(_NETWORKS), help="of the zoo")
    parser.add_argument("--target", default="mali-g76")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    import tvm_edge
    from tvm_edge import zoo

    print(json.dumps(describe_machine()))
    print("| network | off, s | auto, s | more | merged |\n|---|---|---|---|---|")
    for name in options.networks:
        model = zoo.build(name)
        tvm_edge.compile(model, options.target)  # what is loaded and detected once
        seconds: dict[str | bool, list[float]] = {mode: [] for mode in _MODES}
        for _ in range(options.rounds):
            for mode in _MODES:
                start = process_time()
                compiled = tvm_edge.compile(model, options.target, parallel_fusion=mode)
                seconds[mode].append(process_time() - start)
        off, auto = (min(seconds[mode]) for mode in _MODES)
        merged = compiled.report.fusion_line()
        print(f"| {name} | {off:.2f} | {auto:.2f} | {auto / off - 1:+.0%} | {merged} |", flush=True)


if __name__ == "__main__":
    main()
