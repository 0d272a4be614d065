"""``compile`` and ``analyze``."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import tvm

from tvm_edge.compiler.budget import within_budget
from tvm_edge.compiler.build import BuiltLibrary, build, described_target
from tvm_edge.compiler.compilation import Clock, Compilation, Progress, begin
from tvm_edge.compiler.convolutions import TuningLogs
from tvm_edge.compiler.describe import (
    describe_operators,
    describe_unplaced,
    kernel_infos,
    launches_of,
)
from tvm_edge.compiler.options import Options, check_options, check_window
from tvm_edge.compiler.pipeline import PIPELINE, in_smaller_groups
from tvm_edge.errors import (
    CompilationError,
    InputError,
    TvmEdgeWarning,
    UnsupportedOperatorError,
    near_matches,
)
from tvm_edge.frontend import GivenInputs, GivenLength, Picture, survey_model
from tvm_edge.hardware import ResolvedTarget, resolve_target
from tvm_edge.interrupts import hold_interrupts, raise_pending_interrupt
from tvm_edge.lowering.deep_stack import on_deep_stack
from tvm_edge.memory.budget import parse_budget
from tvm_edge.memory.plans import AS_IS, Plan
from tvm_edge.relay_passes.solvers.layout_graph import LayoutPlan
from tvm_edge.report import CompileReport, Launches
from tvm_edge.runtime import CompiledModel, DevicePlan, ModelInfo
from tvm_edge.runtime.threads import Threads, resolve_threads
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload

__all__ = [
    "analyze",
    "built",
    "compile",
    "compile_with",
    "decided_fields",
    "lowered",
    "unmerged_kernels",
]

_LOG = logging.getLogger("tvm_edge.compiler")


def compile(
    model: Any,
    target: str | dict[str, Any] | tvm.target.Target,
    *,
    host: Any = None,
    input_shapes: Mapping[str, Sequence[GivenLength]] | None = None,
    input_values: Mapping[str, Any] | None = None,
    preprocess: Mapping[str, Picture] | None = None,
    example_inputs: Any = None,
    precision: str = "float32",
    precision_exceptions: Sequence[str] = (),
    fallback: str | Sequence[str] = "auto",
    parallel_fusion: str | bool = "auto",
    memory_budget: int | str | None = None,
    tuning_logs: TuningLogs = None,
    num_threads: int | None = None,
    cpus: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> CompiledModel:
    """Compile a model for a target. Deterministic: nothing is measured.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto, tvm.IRModule, PyTorch model, ``"zoo:NAME"``, or dict
        A ``torch.nn.Module`` needs `example_inputs`; a ``torch.export.ExportedProgram`` does not.
        A dict of names to any of the others makes one artifact. Its inputs, outputs and operators
        are called ``"name/…"``; ``run(inputs, models=[…])`` runs some of the models. With
        `parallel_fusion` kernels of different models share launches where all run together.
    target : str, dict or tvm.target.Target
        ``"llvm"`` is this machine's CPU with its real instruction set and all its cores;
        ``"opencl"`` and ``"cuda"`` are its GPU, or a generic one where there is none; a preset
        (``"mali-t860"``), a TVM tag (``"arm/rk3399"``) or a dict names another.
    host : str, dict or tvm.target.Target, optional
        The CPU beside a GPU. Default: what the target says, else this machine's.
    input_shapes : mapping of str to sequence of int, str or Dim, optional
        Shapes of inputs: a length, a name for a dimension that the data of a run tells, or
        a :class:`tvm_edge.Dim` of what is known of it; -1 is open by the model's own name.
        Dimensions of one name are equally long. Default: as the model has them.
    input_values : mapping of str to array_like, optional
        Values of inputs that are constants of the compiled model, and no longer its inputs: a
        sample rate that chooses a branch, a target size. ONNX models only.
    preprocess : mapping of str to Picture, optional
        Inputs that are pictures: resizing, layout, order of channels, mean and scale become part of
        the model (:class:`tvm_edge.Picture`). ONNX models only.
    example_inputs : tuple, mapping or tensor, optional
        Arguments of a ``torch.nn.Module``'s ``forward``, whose shapes the inputs get. A
        ``torch.export.ExportedProgram`` has its own.
    precision : {"float32", "tf32", "float16", "mixed", "bfloat16"}
        ``"tf32"`` lets convolutions and matrix products round their operands to 10 bits of
        mantissa, for the tensor cores of NVIDIA's GPUs (``target="cuda"``, Ampere or newer).
        ``"mixed"`` stores weights and activations as float16 and calculates in float32, but for
        operators that are faster in float32 by estimate, and on GPUs without float16;
        ``"float16"`` also multiplies in float16 where that is faster, on OpenCL and on CPUs with
        float16 arithmetic: its partial sums are float16 over a few products at most (a step of a
        tile, a window; 96 on CPUs). ``"bfloat16"`` is of CPUs: it is stored, and multiplied by
        AMD's with AVX512-BF16, which add up in float32. Inputs and outputs keep their types, and
        operators that the lower type does not suit stay float32, which ``report.precision`` lists.
        ``python -m benchmarks run precision`` measures how large the error is.
    precision_exceptions : sequence of str
        Operators or ONNX nodes that stay float32.
    fallback : {"auto", "list", "none", "error"} or sequence of str
        Which operators leave a GPU for the CPU beside it. ``"auto"``: those that a GPU cannot run,
        and those that make a run faster there by the devices' data sheets, copies counted
        (:mod:`tvm_edge.relay_passes.solvers.minimum_cut`); ``"list"``: those that a GPU cannot run,
        and those outside the list of what performs on its kind of device (ICPP'19 §3.1.2);
        ``"none"``: none, and a model with one that a GPU cannot run is refused; ``"error"``: so is
        one of which ``"list"`` would move an operator; names of operators or ONNX nodes: those, and
        what a GPU cannot run.
    parallel_fusion : {"auto", True, False}
        Whether kernels that do not depend on each other, as those of branches, share a launch
        (EMDL'21). ``"auto"``: where that was measured to gain, by ``tune(…,
        parallel_fusion=True)``, and on GPUs where nobody measured it but the policy predicts it
        (:mod:`tvm_edge.schedules.parallel_policy`); ``True``: wherever it can be; ``False``:
        nowhere. ``report.fusion_groups`` says which, and why others do not.
    memory_budget : int or str, optional
        Most memory of a process that loads the exported model and runs it: bytes, or a size as
        ``"512MiB"``. Counted is anonymous and shared memory, that of the Python process included,
        and memory that a GPU has of its own; weights that are mapped from the artifact are not, as
        the operating system may drop them. The fastest plan by prediction is taken that fits:
        fully connected layers on the CPU, no Winograd algorithm, …; ``report.memory.plans`` lists
        all of them.
    tuning_logs : path or False, optional
        Tuning records: a folder of them or one file, in place of the user's own, which are in
        ``TVM_EDGE_TUNING_LOGS`` or the platform's data folder; ``False`` for none, those that ship
        with the package included. Of each convolution that one is taken of this device, else of its
        architecture, else of its vendor, that is legal and fastest; ``report.records`` says of how
        many, and which were ignored and why. Those of ``precision="float32"`` alone.
    num_threads : int, optional
        Threads of the returned model; default ``TVM_NUM_THREADS``, else all physical cores that the
        process may use.
    cpus : sequence of int, optional
        CPUs that the returned model keeps to, by Linux's numbers.
    progress : callable, optional
        Called on a thread of the compiler with the phase (the names in ``report.seconds``), the
        steps of it that are done, and all of its steps. An exception of it ends the compilation.

    Returns
    -------
    CompiledModel
        Kernels for CPUs that were built before come from a cache, in ``TVM_EDGE_CACHE``. An OpenCL
        driver of this machine builds its kernels now, and not in the first run.

    Raises
    ------
    InvalidModelError, UnsupportedOperatorError, InputError, PlacementError, CompilationError
        See :mod:`tvm_edge.errors`.
    MemoryBudgetError
        No plan fits the budget; its ``smallest_feasible`` has what would.
    """
    options = Options(
        host=host,
        input_shapes=input_shapes,
        input_values=input_values,
        preprocess=preprocess,
        example_inputs=example_inputs,
        precision=precision,
        precision_exceptions=precision_exceptions,
        fallback=fallback,
        parallel_fusion=parallel_fusion,
        memory_budget=memory_budget,
        tuning_logs=tuning_logs,
        num_threads=num_threads,
        cpus=cpus,
        progress=progress,
    )
    check_options(options)
    compiled = _compiled(model, target, options)
    if deserted := compiled.report.deserted_line():
        # Who asked for a device should not have to look into the report to see that it is idle.
        _LOG.warning("%s: %s", compiled.report.model, deserted)
    return compiled


def compile_with(
    model: Any,
    target: str | dict[str, Any] | tvm.target.Target,
    configs: Mapping[ConvWorkload, ConvConfig],
    *,
    layout_plan: LayoutPlan | Literal[False] | None = None,
    weight_window: int | None = None,
    conv_window: int | None = None,
    way: Plan = AS_IS,
    without: Collection[str] = (),
    **options: Any,
) -> CompiledModel:
    """:func:`compile`, with the algorithm and knobs of some convolutions given.

    Parameters
    ----------
    configs : mapping of ConvWorkload to ConvConfig
        What a measurement chose; records, and then the heuristic, choose for all others.
    layout_plan : LayoutPlan or False, optional
        The layouts of the whole network, in place of those in records; ``False`` for estimates.
    weight_window : int, optional
        Bytes. The weights of dense layers with more stay in the artifact, and are read in every
        run, part by part: two of them take no more memory than this
        (:mod:`tvm_edge.relay_passes.memory.split_fc`). Those of a model that runs in the process
        that compiled it lie in memory all the same; a GPU has two parts at a time.
    conv_window : int, optional
        Bytes. The weights of layers that are in one piece are read in every run as well, from a MiB
        on; two of them take no more memory than this: convolutions of more than half of it are cut
        (:mod:`tvm_edge.relay_passes.memory.stream_layers`).
    way : Plan
        What to do where there is no `memory_budget`, which chooses by itself.
    without : collection of str
        Passes to leave out, of those that are optional.
    **options
        Those of :func:`compile`, but that no records are the default.

    Raises
    ------
    InputError
        A window too small for a layer (the message says which would do), or a pass that cannot be
        left out.
    """
    return _compiled(
        model,
        target,
        Options(**options),
        **decided_fields(configs, layout_plan, weight_window, conv_window, way, without),
    )


def decided_fields(
    configs: Mapping[ConvWorkload, ConvConfig],
    layout_plan: LayoutPlan | Literal[False] | None,
    weight_window: int | None,
    conv_window: int | None,
    way: Plan,
    without: Collection[str],
) -> dict[str, Any]:
    """Fields of a compilation that a caller decided, checked."""
    check_window("weight_window", weight_window)
    check_window("conv_window", conv_window)
    if weight_window is not None:
        way = replace(way, weight_window=weight_window)
    if conv_window is not None:
        way = replace(way, conv_window=conv_window)
    for name in without:
        if name not in PIPELINE.optional:
            raise InputError(
                f"the pass {name!r} cannot be left out; {near_matches(name, PIPELINE.optional)}",
                name="without",
                got=repr(name),
            )
    return {
        "configs": configs,
        "layout_plan": layout_plan,
        "plan": way,
        "without": frozenset(without),
    }


@hold_interrupts()
def lowered(model: Any, target: Any, options: Options, **decided: Any) -> Compilation:
    """Compile a model up to instructions and their report, by the plan that fits the budget.

    Parameters
    ----------
    model, target, options, **decided
        As for :func:`~tvm_edge.compiler.compilation.begin`.

    Raises
    ------
    MemoryBudgetError
        No plan fits.
    """

    def passes() -> Compilation:
        begun = begin(model, target, options, **decided)
        budget = parse_budget(options.memory_budget)
        if budget is None:
            return PIPELINE.run(begun)
        return within_budget(begun, lambda plan: PIPELINE.run(begun.by_plan(plan)), budget)

    return on_deep_stack(passes)


@hold_interrupts()
def _compiled(model: Any, target: Any, options: Options, **decided: Any) -> CompiledModel:
    """Compile up to a model that runs; arguments as of :func:`lowered`."""
    threads = resolve_threads(options.num_threads, options.cpus)
    return built(lowered(model, target, options, **decided), threads)


def built(done: Compilation, threads: Threads) -> CompiledModel:
    """Build what was lowered; the model runs with so many threads."""
    raise_pending_interrupt()
    clock = done.clock
    with clock("build"):
        library = on_deep_stack(
            lambda: build(
                done.module,
                done.resolved,
                _smaller_groups(done),
                progress=partial(clock.report, "build"),
            )
        )
    report = replace(done.report, seconds=clock.seconds)
    for message in report.warnings:
        warnings.warn(message, TvmEdgeWarning, stacklevel=5)
    _LOG.info("%s: %s", report.model, report.placement_line())
    owners = tuple(weight.device for weight in done.weights)
    devices = DevicePlan(done.placed.kinds, done.placed.inputs, owners)
    imported, code = done.imported, described_target(done.resolved)
    info = ModelInfo(imported.inputs, imported.outputs, code, devices, report, imported.parts)
    model = CompiledModel(info, library, [weight.value for weight in done.weights], threads)
    with clock("programs"):
        model.build_programs(partial(clock.report, "programs"))
    report.seconds.update(clock.stopped())
    return model


def _smaller_groups(done: Compilation) -> Callable[[], BuiltLibrary] | None:
    """Make a function that builds the code in smaller work-groups; ``None`` if none is smaller."""
    begun = in_smaller_groups(done)
    if begun is None:
        return None

    def make() -> BuiltLibrary:
        small = PIPELINE.part("BlockLayout").run(replace(begun, clock=Clock()))
        mine, others = (
            [(w.value.shape, w.value.dtype) for w in each.weights] for each in (small, done)
        )
        if mine != others:
            raise CompilationError(
                "the kernels with smaller work-groups want other weights than the model's; this is "
                "a bug in tvm-edge: report it with the model"
            )
        infos = kernel_infos(small, small.launches)
        alone = (launches_of(each.kernels, each.launches, infos) for each in small.models)
        launches = Launches(tuple(infos.values()), tuple(alone))
        return build(small.module, done.resolved, launches=launches)

    return make


@hold_interrupts()
def analyze(
    model: Any,
    target: str | dict[str, Any] | tvm.target.Target,
    *,
    host: Any = None,
    input_shapes: Mapping[str, Sequence[GivenLength]] | None = None,
    input_values: Mapping[str, Any] | None = None,
    preprocess: Mapping[str, Picture] | None = None,
    example_inputs: Any = None,
    fallback: str | Sequence[str] = "auto",
    parallel_fusion: str | bool = "auto",
    memory_budget: int | str | None = None,
    tuning_logs: TuningLogs = None,
) -> CompileReport:
    """Say what :func:`compile` would do, without generating code and without a device.

    A model with operators that have no implementation is no error here: the report lists them as
    ``unsupported`` and gives the work of the others; kernels and memory stay open.

    Parameters
    ----------
    model, target, host, input_shapes, input_values, preprocess, example_inputs, fallback, \
parallel_fusion, memory_budget, tuning_logs
        As for :func:`compile`.

    Returns
    -------
    CompileReport

    Raises
    ------
    InvalidModelError, InputError, PlacementError, MemoryBudgetError
    """
    options = Options(
        host=host,
        input_shapes=input_shapes,
        input_values=input_values,
        preprocess=preprocess,
        example_inputs=example_inputs,
        fallback=fallback,
        parallel_fusion=parallel_fusion,
        memory_budget=memory_budget,
        tuning_logs=tuning_logs,
    )
    check_options(options)
    try:
        return lowered(model, target, options).report
    except UnsupportedOperatorError as err:
        if example_inputs is not None:
            raise  # the survey is of files
        survey = survey_model(model, GivenInputs.of(input_shapes, input_values, preprocess), err)
    resolved = resolve_target(target, host)
    placements = describe_unplaced(survey)
    return CompileReport(
        model=survey.name,
        target=f"{resolved.kind} ({resolved.spec.name})",
        placements=placements,
        kernels=(),
        memory=None,
        warnings=survey.warnings,
        operators=describe_operators(survey.nodes, survey.folded, placements),
        unsupported=survey.unsupported,
    )


@hold_interrupts()
def unmerged_kernels(
    model: Any,
    target: str | dict[str, Any] | tvm.target.Target,
    *,
    host: Any = None,
    input_shapes: Mapping[str, Sequence[GivenLength]] | None = None,
    input_values: Mapping[str, Any] | None = None,
    tuning_logs: TuningLogs = False,
) -> tuple[tvm.IRModule, ResolvedTarget]:
    """Return the scheduled kernels that :func:`compile` hands to parallel fusion, and their device.

    Parameters
    ----------
    model, target, host, input_shapes, input_values, tuning_logs
        As for :func:`compile`.
    """
    options = Options(
        host=host, input_shapes=input_shapes, input_values=input_values, tuning_logs=tuning_logs
    )
    done = PIPELINE.part(until="FuseParallel").run(begin(model, target, options))
    return done.module, done.resolved
