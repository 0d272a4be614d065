"""Time of a compilation with parallel fusion, and without.

The processor's time of ``tvm_edge.compile`` with ``parallel_fusion`` off and ``"auto"``, in turns
in one process, for a GPU that need not be there, whose driver compiles OpenCL later. The least of
``--rounds`` counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from time import process_time

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Parser

_NETWORKS = ("squeezenet1_0", "googlenet", "inception_v3", "nasnet_mobile")
_MODES: tuple[str | bool, ...] = (False, "auto")


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = Parser("compile_time", __doc__)
    parser.shared(networks=_NETWORKS, target="mali-g76", rounds=3)
    options = parser.parse_args(arguments)
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
