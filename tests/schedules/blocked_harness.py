"""Models compiled with convolutions on blocked images, whether or not blocks pay for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import onnx
import pytest
import tvm
from tvm import tirx

import tvm_edge
from tests.onnx_models import reference
from tests.schedules import harness
from tests.schedules.harness import (
    Graph,
    Kernel,
    assert_close,
    assert_scheduled,
    loop_kinds,
    scalar_lanes,
)
from tvm_edge.compiler import compilation, kernel_passes
from tvm_edge.hardware import DeviceSpec, ResolvedTarget, resolve_target
from tvm_edge.relay_passes.layout import choose_blocks as layout_choice
from tvm_edge.relay_passes.lower.schedule_kernels import KernelSchedule, schedule_kernels
from tvm_edge.report import CompileReport
from tvm_edge.schedules.base import Scheduled
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.algorithm import choose_config

EPILOGUES = (
    "none",
    "bias",
    "relu",
    "clip",
    "sigmoid",
    "silu",
    "residual",
    "constant",
    "plane",
)
"""Epilogues of a convolution. ``silu`` uses the sums twice, ``residual`` adds an image from
outside, ``constant`` multiplies by a constant for each element, ``plane`` subtracts from a constant
that is the same for all channels."""

SPECS = tuple(
    replace(spec, peak_gflops=64.0 * spec.lanes(), bandwidth_gbs=20.0) for spec in harness.SPECS
)
"""CPUs of which the speed is known too: algorithms are chosen by it."""

OPENCL_SPECS = tuple(
    replace(spec, kind="gpu", on_cpu=True, max_work_group_size=64) for spec in SPECS
)
"""These CPUs behind OpenCL."""

Choose = Callable[[ConvWorkload, DeviceSpec], ConvConfig]


def direct(workload: ConvWorkload, spec: DeviceSpec) -> ConvConfig:
    """The heuristic's choice without Winograd's algorithm."""
    config = choose_config(workload, spec)
    return replace(config, algorithm="direct", m=0) if config.algorithm == "winograd" else config


@dataclass(frozen=True)
class Conv:
    """A convolution with constant filters and what follows it."""

    batch: int = 1
    groups: int = 1
    channels: int = 16
    filters: int = 16
    image: tuple[int, int] = (9, 9)
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    epilogue: str = "relu"

    def output_size(self) -> list[int]:
        """Height and width of the result."""
        return [
            (size + self.pads[i] + self.pads[i + 2] - self.dilations[i] * (self.kernel[i] - 1) - 1)
            // self.strides[i]
            + 1
            for i, size in enumerate(self.image)
        ]

    def is_valid(self) -> bool:
        """Whether there is an output, and an epilogue that is not folded into the filters.

        Of a single pixel a constant for each element is one for each channel.
        """
        folded = self.output_size() == [1, 1] and self.epilogue in ("constant", "plane")
        return min(self.output_size()) > 0 and not folded

    def rule(self, lanes: int) -> str:
        """The rule for direct convolution on blocks of `lanes`; empty if blocks do not fit."""

        def fits(count: int) -> bool:  # filled up by at most half as many channels again
            return 2 * (-(-count // lanes) * lanes) <= 3 * count

        if not fits(self.filters):
            return ""
        if 1 < self.groups == self.channels == self.filters:
            return "window_blocked"
        if self.groups == 1:
            return "conv2d_blocked" if self.channels <= 4 or fits(self.channels) else ""
        whole = all(n // self.groups % lanes == 0 for n in (self.channels, self.filters))
        return "conv2d_blocked" if whole else ""

    def build(self, graph: Graph, name: str = "conv", data: str | None = None) -> str:
        """Add the convolution, called `name`, and its epilogue to a graph; its result."""
        random = np.random.default_rng([*name.encode()])
        own = self.channels // self.groups
        # Results of about one, whatever the epilogue makes of them.
        scale = (own * self.kernel[0] * self.kernel[1]) ** -0.5
        filters = random.normal(0, scale, (self.filters, own, *self.kernel))
        parameters = [graph.constant(filters)]
        if self.epilogue not in ("none", "plane"):
            parameters.append(graph.constant(random.normal(size=self.filters)))
        result = graph.op(
            "Conv",
            data or graph.input(self.batch, self.channels, *self.image),
            *parameters,
            name=name,
            kernel_shape=self.kernel,
            strides=self.strides,
            dilations=self.dilations,
            pads=self.pads,
            group=self.groups,
        )
        if self.epilogue == "relu":
            return graph.op("Relu", result)
        if self.epilogue == "clip":
            return graph.op("Clip", result, graph.constant(-1.0), graph.constant(1.5))
        if self.epilogue == "sigmoid":
            return graph.op("Sigmoid", result)
        if self.epilogue == "silu":
            return graph.op("Mul", result, graph.op("Sigmoid", result))
        size = self.output_size()
        if self.epilogue == "residual":
            added = graph.input(self.batch, self.filters, *size)
            return graph.op("Relu", graph.op("Add", result, added))
        if self.epilogue == "constant":
            factor = graph.constant(random.normal(size=(self.filters, *size)))
            return graph.op("Mul", result, factor)
        if self.epilogue == "plane":
            return graph.op("Sub", graph.constant(random.normal(size=size)), result)
        return result


@dataclass(frozen=True)
class Compiled:
    """A compiled model, and its kernels before and after scheduling."""

    model: tvm_edge.CompiledModel
    kernels: dict[str, Kernel]

    @property
    def report(self) -> CompileReport:
        """Report of the compilation."""
        return self.model.report

    def rules_of(self, operator: str) -> set[str]:
        """The rules of the kernels that compute an operator, without copies of its images."""
        taken = {k.rule for k in self.report.kernels if operator in k.operators}
        return taken - {"elementwise"}

    def transforms(self) -> list[str]:
        """The kernels that pack or unpack an image, in order, whatever is fused into them."""
        return [
            "unpack" if "unpack" in kernel.name else "pack"
            for kernel in self.report.kernels
            if "pack" in kernel.name
        ]


def compile_as(
    model: onnx.ModelProto,
    spec: DeviceSpec,
    choose: Choose | None = None,
    precision: Literal["float32", "float16", "mixed"] = "float32",
) -> Compiled:
    """Compile for this machine's instructions with the schedules of another CPU.

    By OpenCL if that is how the CPU is reached. All convolutions that can be are blocked, whether
    that pays or not.

    Parameters
    ----------
    choose : callable, optional
        The algorithm of each convolution, instead of the heuristic.
    """
    found: dict[str, Kernel] = {}

    def resolve(target: Any, host: Any = None) -> ResolvedTarget:
        return replace(resolve_target(target, host), spec=spec)

    def record(
        mod: tvm.IRModule, resolved: ResolvedTarget, precision: str
    ) -> tuple[tvm.IRModule, dict[str, KernelSchedule]]:
        after, schedules = schedule_kernels(mod, resolved, precision)
        for name, done in schedules.items():
            scheduled = Scheduled(after[name], done.rule, done.origin)  # type: ignore[arg-type]
            found[name] = Kernel(name, mod[name], scheduled)
        return after, schedules

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "resolve_target", resolve)
        patch.setattr(kernel_passes, "schedule_kernels", record)
        if choose is not None:
            patch.setattr(layout_choice, "choose_config", choose)
        patch.setattr(layout_choice, "_gain", lambda *_: float("inf"))
        target = "opencl" if spec.on_cpu else "llvm"
        return Compiled(tvm_edge.compile(model, target, precision=precision), found)


def check(graph: Graph, spec: DeviceSpec, choose: Choose | None = None) -> Compiled:
    """Compare a graph with ONNX Runtime; every kernel is scheduled, by a rule that knows it."""
    model = graph.model()
    compiled = compile_as(model, spec, choose)
    actual = compiled.model.run(graph.values)
    for name, expected in reference(model, graph.values).items():
        text = onnx.printer.to_text(model.graph).partition("<float")[0]  # without the weights
        assert_close(actual[name], expected, f"{name} of\n{text}")
    assert_kernels(compiled, spec)
    return compiled


def check_convs(convs: list[Conv], spec: DeviceSpec, choose: Choose) -> Compiled:
    """Check convolutions side by side, called ``conv0``, ``conv1``, …"""
    graph = Graph()
    for i, conv in enumerate(convs):
        graph.output(conv.build(graph, f"conv{i}"))
    return check(graph, spec, choose)


def assert_kernels(compiled: Compiled, spec: DeviceSpec) -> None:
    """No kernel is left to the fallback, serial or scalar."""
    for info in compiled.report.kernels:
        assert info.origin == "heuristic", info
    for kernel in compiled.kernels.values():
        assert_scheduled(kernel, spec)
        if kernel.scheduled.rule in ("conv2d_blocked", "window_blocked", "winograd"):
            assert tirx.ForKind.VECTORIZED in loop_kinds(kernel.scheduled.func)
            assert not scalar_lanes(kernel.scheduled.func), kernel.scheduled.func
