"""Reports of models that nobody compiled: large, with every section, and with awkward names."""

from __future__ import annotations

import math
from dataclasses import replace

from tvm_edge import CompileReport, Profile
from tvm_edge.report import (
    KernelInfo,
    MemoryInfo,
    OperatorInfo,
    Placement,
    PrecisionInfo,
    RecordsInfo,
)
from tvm_edge.runtime.profile import KernelTime

NASTY = "</script></style></title><img src=x onerror=\"document.title='owned'\">&amp;\"'`"
"""Would run in a page that does not escape names."""

_TYPES = ("Conv", "BatchNormalization", "Clip")


def made_report(operators: int = 60) -> CompileReport:
    """A report with something in every section: chains of three operators in a kernel, every
    seventh kernel on the CPU, and a branch from every kernel to the next but four.
    """
    kernels: list[KernelInfo] = []
    infos: list[OperatorInfo] = []
    for index in range(operators):
        number, step = divmod(index, len(_TYPES))
        device = "llvm" if number % 7 == 5 else "opencl"
        inputs = [index - 1] if index else []
        if step == 0 and number >= 5:
            inputs.append(index - 5 * len(_TYPES))
        infos.append(
            OperatorInfo(
                f"stage{number % 4}/block{number}/{_TYPES[step].lower()}",
                _TYPES[step],
                None if number % 5 == 4 else 1_000_000 * (index + 1) ** 2,
                9 * number,
                36 * number,
                4096 * (index + 1),
                4096 * (index + 2),
                device,
                "the list of operators for the CPU" if device == "llvm" else "the target",
                inputs=tuple(inputs),
            )
        )
        if step == len(_TYPES) - 1 or index == operators - 1:
            own = infos[number * len(_TYPES) :]
            origin = ("heuristic", "tuned", "fallback", "transferred")[number % 4]
            name, names = f"fused_conv2d_{number}", tuple(o.name for o in own)
            flops = float(sum(o.flops or 0 for o in own))
            of_it = (device, origin, "conv2d", flops, 5000 + index)
            kernels.append(KernelInfo(name, names, *of_it, results=3000))
    infos[0] = replace(infos[0], name=NASTY)
    kernels[0] = replace(kernels[0], operators=(NASTY, *kernels[0].operators[1:]))
    placements = tuple(Placement(o.name, o.op_type, o.device, o.reason) for o in infos)
    count = len(kernels)
    weights, planned = 1 << 20, 1 << 19
    gpu = tuple(int(planned / 2 * (1 + math.cos(i))) for i in range(count))
    memory = MemoryInfo(
        weights,
        planned + 4096,
        0,
        2048,
        3 << 20,
        {"opencl": planned, "llvm": 4096},
        {"opencl": gpu, "llvm": (4096,) * count},
    )
    partitions: list[tuple[str, int]] = []
    for kernel in kernels:
        if partitions and partitions[-1][0] == kernel.device:
            partitions[-1] = (kernel.device, partitions[-1][1] + 1)
        else:
            partitions.append((kernel.device, 1))
    copy = {"shape": [1, 64, "n"], "dtype": "float32", "source": "opencl", "destination": "llvm"}
    return CompileReport(
        model=NASTY,
        target="opencl (a device)",
        placements=placements,
        kernels=tuple(kernels),
        memory=memory,
        partitions=tuple(partitions),
        copies=(
            {**copy, "tensor": infos[14].name, "bytes": 65536, "zero_copy": True},
            {**copy, "tensor": NASTY, "bytes": 0, "zero_copy": False},
        ),
        fusion_groups=(
            {
                "operators": ["left", "right"],
                "kernels": ["a", "b"],
                "taken": True,
                "reason": "faster: 1.5 times",
            },
            {
                "operators": ["one", NASTY],
                "kernels": ["c", "d"],
                "taken": False,
                "reason": "fills the device alone",
            },
        ),
        layouts={infos[3].name: "NCHW16c, Winograd"},
        warnings=(f"the weight {NASTY} holds NaN",),
        seconds={"import": 0.25, "build": 1.5},
        operators=tuple(infos),
        precision=PrecisionInfo(
            "mixed", {infos[1].name: "float16", NASTY: "float32"}, {NASTY: "named"}, 3, 9, 18
        ),
        records=RecordsInfo(20, 5, 4, (f"{NASTY} of arm/mali-t860: another version",)),
    )


def profile_of(report: CompileReport) -> Profile:
    """Times of its kernels: 30, 40, … microseconds, 5 between them."""
    start, rows = 7.0, []
    total = sum(35.0 + 10 * i for i in range(len(report.kernels))) + 10
    for index, kernel in enumerate(report.kernels):
        time = 30.0 + 10 * index
        rates = (kernel.flops / time / 1e3, kernel.bytes / time / 1e3)
        made = (kernel.name, kernel.operators, kernel.device, kernel.origin)
        rows.append(KernelTime(*made, start, time, time / total, *rates))
        start += time + 5
    return Profile(tuple(rows), total)
