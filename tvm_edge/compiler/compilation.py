"""One compilation: what was asked for, and what passes have decided of it so far."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import tvm

from tvm_edge.compiler.convolutions import ConvChoices
from tvm_edge.compiler.layouts import LayoutChoice
from tvm_edge.compiler.options import Options, check_precision
from tvm_edge.compiler.placement import Placed
from tvm_edge.compiler.precision_choice import PrecisionChoice
from tvm_edge.errors import CompilationError, TvmEdgeError, one_line
from tvm_edge.files import writing
from tvm_edge.frontend import ImportedModel, load_model
from tvm_edge.hardware import ResolvedTarget, resolve_target
from tvm_edge.memory.plans import AS_IS, Plan
from tvm_edge.memory.scratch import Scratch
from tvm_edge.relay_passes.ir.node_trace import NodeTrace
from tvm_edge.relay_passes.lower.hand_out_results import HandedOut
from tvm_edge.relay_passes.lower.schedule_kernels import KernelSchedule
from tvm_edge.relay_passes.memory.lift_weights import Weight
from tvm_edge.relay_passes.memory.split_fc import SplitLayer
from tvm_edge.relay_passes.precision.lower_precision import LoweredPrecision
from tvm_edge.relay_passes.solvers.layout_graph import LayoutPlan
from tvm_edge.report import CompileReport, ModelPart
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.parallel_policy import Group

__all__ = ["Clock", "Compilation", "Kernel", "ModelInstructions", "Progress", "begin"]

_LOG = logging.getLogger("tvm_edge.compiler")
_DUMP_VARIABLE = "TVM_EDGE_DUMP"


Progress = Callable[[str, int, int], None]
"""Called with a phase, the steps of it that are done, and all of its steps."""


class Clock:
    """Wall-clock seconds of named phases, and whatever they raise as an error of ours.

    Parameters
    ----------
    progress : Progress, optional
        Told of every step. What it raises ends the compilation, and is raised as it is.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress
        self._raised: BaseException | None = None
        self._began = perf_counter()

    def again(self) -> Clock:
        """Return a clock that goes on from here, for another way to compile the same model."""
        other = Clock(self._progress)
        other.seconds, other._began = dict(self.seconds), self._began
        return other

    def report(self, phase: str, done: int, total: int) -> None:
        """Tell the caller's `progress`."""
        if self._progress is None:
            return
        try:
            self._progress(phase, done, total)
        except BaseException as err:
            self._raised = err
            raise

    def stopped(self) -> dict[str, float]:
        """Return the seconds by phase; what is of none is ``other``, so that they sum up."""
        rest = perf_counter() - self._began - sum(self.seconds.values())
        return {**self.seconds, "other": round(max(rest, 0.0), 3)}

    @contextmanager
    def __call__(self, phase: str, step: str = "") -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        except (TvmEdgeError, MemoryError):
            raise
        # A model is anybody's file, and TVM meets what it did not foresee with any exception.
        except Exception as err:
            if err is self._raised:
                raise
            _LOG.info("phase %r failed%s", phase, step and f" in {step}", exc_info=True)
            where = f"phase {phase!r}{step and f', pass {step}'}"
            raise CompilationError(
                f"the compiler fails on this model in its {where} ("
                f"{type(err).__name__}: {one_line(err)}); simplify the model, and report it "
                "with the model if ONNX Runtime runs it"
            ) from err
        spent = self.seconds.get(phase, 0.0) + perf_counter() - start
        self.seconds[phase] = round(spent, 3)


@dataclass(frozen=True)
class Kernel:
    """A kernel call of ``main``, by the number that its result is located at.

    Attributes
    ----------
    nodes : tuple of int
        Nodes of the user's model that it computes.
    name : str
        Its function in the module.
    loop_flops : float
        Operations of its loops, guards of padding included; 0 where extents are not constants.
    nbytes : int
        Bytes of its arguments, each counted once.
    block : int
        Channels of a block of its result, 0 for one that is not stored in blocks.
    schedule : KernelSchedule or None
        ``None`` until it has one.
    weights, results, workspace, streamed : int
        Bytes; streamed weights are among the weights.
    streamed_layer : int or None
        Bytes of the weights of a whole layer that it reads as they are streamed.
    members : tuple of int
        Of a merged kernel, the numbers of those that it is made of.
    """

    nodes: tuple[int, ...] = ()
    name: str = ""
    loop_flops: float = 0.0
    nbytes: int = 0
    block: int = 0
    schedule: KernelSchedule | None = None
    weights: int = 0
    results: int = 0
    workspace: int = 0
    streamed: int = 0
    streamed_layer: int | None = None
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class ModelInstructions:
    """One of several models by itself.

    Attributes
    ----------
    part : ModelPart
    instructions, plain : IRModule
        With and without recorded launches.
    kernels : mapping of int to Kernel
    launches : tuple of int
        Its kernels in execution order.
    weights : tuple of int
        Weights that it reads, by their positions among those of all models.
    """

    part: ModelPart
    instructions: tvm.IRModule
    plain: tvm.IRModule
    kernels: Mapping[int, Kernel]
    launches: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True)
class Compilation:
    """A model on its way from operators to instructions.

    Passes (:mod:`tvm_edge.compiler.pipeline`) make another one of it, with what they decided.

    Attributes
    ----------
    imported : ImportedModel
    resolved : ResolvedTarget
        What runs the model: of a GPU that all operators left, the CPU beside it.
    options : Options
    plan : Plan
        For a memory budget.
    configs : mapping of ConvWorkload to ConvConfig
        Configurations of convolutions that the caller measured.
    layout_plan : LayoutPlan, False or None
        Layouts that the caller chose; ``False`` for estimates, ``None`` for those of records.
    work_group : int or None
        Most work-items of a group; ``None`` for what the device allows.
    recording : str or None
        Kind of the device whose launches are recorded, in instructions that are being made.
    without : frozenset of str
        Passes that are left out, by name; those that are optional can be.
    hands_out : bool
        Whether the result of every kernel is an output.
    module : IRModule
    typical : mapping of str to int
        Typical lengths of open dimensions, and of the kernels' own lengths, by name.
    largest : mapping of str to int
        Largest lengths of the same, for which memory is planned; empty without a memory budget.
    asked : ResolvedTarget
        The target that the user named.
    precision : str
    placed : Placed
    lowered_types : LoweredPrecision or None
        What became of the types, with ``"float16"``, ``"mixed"`` or ``"bfloat16"``.
    precision_choice : PrecisionChoice or None
        What estimates keep in float32, with ``precision="mixed"``.
    choices : ConvChoices
    layouts : LayoutChoice
    split_layers : tuple of SplitLayer
    before_layout : Compilation or None
        This one before layouts and kernels, to be compiled again in smaller work-groups.
    copies : tuple of dict
    handed_out : tuple of HandedOut
        Outputs after the model's own.
    trace : NodeTrace or None
    kernels : mapping of int to Kernel
    launches : tuple of int
        Numbers of the kernels that ``main`` calls, in execution order.
    apart : tuple of int
        The same without merged kernels.
    scratch : mapping of str to Scratch
    weights : tuple of Weight
    unaligned : tuple of int
        Inputs that kernels read wherever they begin.
    lifted : IRModule or None
        Scheduled kernels; ``main`` takes the weights as its last parameter.
    merged : IRModule or None
        The same with merged kernels.
    groups : tuple of Group
    plain : IRModule or None
        Instructions without recorded launches.
    models : tuple of ModelInstructions
        Each of several models by itself.
    report : CompileReport or None
    clock : Clock
    """

    imported: ImportedModel
    resolved: ResolvedTarget
    options: Options
    plan: Plan = AS_IS
    configs: Mapping[ConvWorkload, ConvConfig] = field(default_factory=dict)
    layout_plan: LayoutPlan | Literal[False] | None = None
    work_group: int | None = None
    recording: str | None = None
    without: frozenset[str] = frozenset()
    hands_out: bool = False
    # Filled by passes.
    module: tvm.IRModule = None
    typical: Mapping[str, int] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)
    asked: ResolvedTarget = None  # type: ignore[assignment]
    precision: str = "float32"
    placed: Placed = None  # type: ignore[assignment]
    lowered_types: LoweredPrecision | None = None
    precision_choice: PrecisionChoice | None = None
    choices: ConvChoices = field(default_factory=ConvChoices)
    layouts: LayoutChoice = field(default_factory=LayoutChoice)
    split_layers: tuple[SplitLayer, ...] = ()
    before_layout: Compilation | None = None
    copies: tuple[dict[str, Any], ...] = ()
    handed_out: tuple[HandedOut, ...] = ()
    trace: NodeTrace | None = None
    kernels: Mapping[int, Kernel] = field(default_factory=dict)
    launches: tuple[int, ...] = ()
    apart: tuple[int, ...] = ()
    scratch: Mapping[str, Scratch] = field(default_factory=dict)
    weights: tuple[Weight, ...] = ()
    unaligned: tuple[int, ...] = ()
    lifted: tvm.IRModule = None
    merged: tvm.IRModule = None
    groups: tuple[Group, ...] = ()
    plain: tvm.IRModule = None
    models: tuple[ModelInstructions, ...] = ()
    report: CompileReport = None  # type: ignore[assignment]
    clock: Clock = field(default_factory=Clock)

    def by_plan(self, plan: Plan) -> Compilation:
        """Return this compilation, before its first pass, with another plan for memory."""
        return replace(self, plan=plan, clock=self.clock.again())

    def dump(self, label: str) -> None:
        """Write the module as TVMScript into ``$TVM_EDGE_DUMP``, numbered in the order of writing.

        Does nothing if the variable is not set.
        """
        directory = os.environ.get(_DUMP_VARIABLE)
        if not directory:
            return
        folder = Path(directory)
        with writing(
            folder, "modules to", advice=f"name another folder in {_DUMP_VARIABLE}, or unset it"
        ):
            folder.mkdir(parents=True, exist_ok=True)
            serial = len(list(folder.glob("*.py")))
            name = re.sub(r"[^\w.-]", "_", label)
            (folder / f"{serial:03d}-{name}.py").write_text(self.module.script())


def begin(model: Any, target: Any, options: Options, **decided: Any) -> Compilation:
    """Begin a compilation: resolve the target and import the model.

    Parameters
    ----------
    model, target
        As for :func:`tvm_edge.compile`.
    options : Options
    **decided
        Fields of :class:`Compilation` that the caller decided.
    """
    clock = Clock(options.progress)
    clock.report("import", 0, 1)
    with clock("target"):
        resolved = resolve_target(target, options.host)
        check_precision(options.precision, resolved)
    with clock("import"):
        imported = load_model(
            model,
            options.input_shapes,
            options.input_values,
            options.preprocess,
            options.example_inputs,
        )
    clock.report("import", 1, 1)
    begun = Compilation(
        imported,
        resolved,
        options,
        module=imported.module,
        typical=imported.typical,
        largest=imported.largest if options.memory_budget is not None else {},
        asked=resolved,
        precision=options.precision,
        clock=clock,
        **decided,
    )
    begun.dump("imported")
    return begun
