"""``main`` in stages, so that devices can work on different frames at the same time.

Very deep CNNs (Rallapalli et al. 2016, §3 "CPU offload with pipelining") run fully connected layers
on the CPU in a thread of their own while the GPU has the next frame. Here any partition can: each
maximal run of kernels on one device is a stage, a function that takes what earlier stages made and
returns what later ones need. Those tensors are a frame's own: the memory planner leaves results
of functions alone, so that no stage of another frame reuses their storage.

Stages do the work of ``main`` in its order, copies aside. All copies belong to the GPU's stages:
the GPU has one queue, and the CPU would wait for whatever it holds of other frames. So tensors that
the CPU reads are waited for at the end of the GPU's stage. Tensors that the CPU made are copied at
the beginning of the GPU's next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_edge.relay_passes.instructions.lower_copies import LowerCopies
from tvm_edge.relay_passes.ir.aliases import Lives, reached
from tvm_edge.relay_passes.ir.copy_functions import COPY, READ
from tvm_edge.relay_passes.ir.expressions import KERNEL_CALLS, all_bindings, is_call
from tvm_edge.relay_passes.ir.vdevices import is_same, vdevice_of, vdevices_of
from tvm_edge.relay_passes.place.label_operators import CPU, GPU

__all__ = ["Stage", "split_stages"]

# What makes no tensor: other names, parts and shapes of one. Each stage has those that it needs.
_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten", "relax.shape_of")


@dataclass(frozen=True)
class Stage:
    """A part of ``main`` as a function.

    The first takes what ``main`` takes. Each other takes what the one before returns, as separate
    arguments, and the weights after them. All return a tuple; the last returns the results of
    ``main``, all of them on the CPU.

    Attributes
    ----------
    device : int
        The virtual device of its kernels.
    function : relax.Function
    """

    device: int
    function: relax.Function


def split_stages(lifted: tvm.IRModule, shared: Collection[str] = ()) -> list[Stage]:
    """The stages of a module's ``main``.

    Parameters
    ----------
    lifted : IRModule
        Scheduled kernels; ``main`` takes the weights as its last parameter, and copies between
        devices are ``to_vdevice``.
    shared : collection of {"read", "write"}
        Accesses of the host to tensors of the device where they are. It writes none of them
        here: it would wait for the device's work on other frames.

    Returns
    -------
    list of Stage
        Empty where there is one: on one device, and where branches may run on either.
    """
    if len(vdevices_of(lifted)) < 2:
        return []
    if any(isinstance(binding.value, relax.If) for binding in all_bindings(lifted["main"].body)):
        return []
    mod, results = _results_on_cpu(relax.transform.ToNonDataflow()(lifted))
    # A pass, by a decorator that type checkers cannot see through.
    lower: Any = LowerCopies([way for way in shared if way == "read"], overlapped=False)
    splitter = _Splitter(lower(mod), len(results))
    return splitter.stages() if len(splitter.runs) > 1 else []


def _results_on_cpu(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[relax.Expr]]:
    """The module with its results copied to the CPU where they are not, and those results."""
    main, cpu = mod["main"], vdevices_of(mod)[CPU]
    values = {binding.var: binding.value for binding in all_bindings(main.body)}
    builder = relax.BlockBuilder()
    bindings: list[relax.Binding] = []

    def let(value: relax.Expr, name: str) -> relax.Var:
        value = builder.normalize(value)
        var = relax.Var(name, value.ty)
        bindings.append(relax.VarBinding(var, value))
        return var

    def leaves(expr: relax.Expr) -> Iterator[relax.Expr]:
        value = values.get(expr) if isinstance(expr, relax.Var) else expr
        if isinstance(value, relax.Var):
            yield from leaves(value)
        elif isinstance(value, relax.Tuple):
            for item in value.fields:
                yield from leaves(item)
        elif isinstance(expr.ty, relax.TupleType):
            for index in range(len(expr.ty.fields)):
                yield let(relax.TupleGetItem(expr, index), "item")
        else:
            yield expr if isinstance(expr, relax.Var) else let(expr, "item")

    results = []
    for result in list(leaves(main.body.body)):
        device = vdevice_of(result.ty)
        known = isinstance(result.ty, relax.TensorType) and result.ty.shape is not None
        if known and (device is None or not is_same(device, cpu)):
            result = let(relax.op.to_vdevice(result, cpu), "result")
        results.append(result)
    out = let(relax.Tuple(results), "results")
    mod = mod.clone()
    mod["main"] = _function(main, main.params, [*all_bindings(main.body), *bindings], out)
    return mod, results


def _function(
    main: relax.Function,
    params: list[relax.Var],
    bindings: list[relax.Binding],
    result: relax.Var,
) -> relax.Function:
    body = relax.SeqExpr([relax.BindingBlock(bindings)], result)
    relax.expr._update_type(body, result.ty)
    return relax.Function(params, body, result.ty, main.is_pure, main.attrs)


@dataclass
class _Run:
    """Kernels of one device one after the other, and what goes with them."""

    device: int
    bindings: list[relax.Binding] = field(default_factory=list)
    # Copies to the CPU, which the host waits for when all kernels are enqueued.
    reads: list[relax.Binding] = field(default_factory=list)


class _Splitter:
    """Deals the bindings of ``main``, whose copies are calls already, to runs."""

    def __init__(self, mod: tvm.IRModule, results: int) -> None:
        self._main = mod["main"]
        self._weights = self._main.params[-1]
        self._cpu = vdevices_of(mod)[CPU]
        self._lives = Lives(self._main)
        self._views: dict[relax.Var, relax.Binding] = {}
        self._home: dict[relax.Var, int] = {}  # the run that makes it
        self._lengths: dict[tirx.Var, int] = {}  # the run that a symbolic length is known in
        self._writes: list[relax.Binding] = []  # copies to the GPU, for its next run
        *bindings, last = self._lives.bindings
        self._results = last.value
        assert isinstance(self._results, relax.Tuple) and len(self._results.fields) == results
        kernels = [binding.var for binding in bindings if is_call(binding.value, *KERNEL_CALLS)]
        self.runs = [_Run(self._device_of(kernels[0]) if kernels else GPU)]
        for position, binding in enumerate(bindings):
            self._deal(position, binding)
        self._end_run()
        for copy in self._writes:
            self._put(copy)

    def _deal(self, position: int, binding: relax.Binding) -> None:
        value = binding.value
        if isinstance(binding, relax.MatchCast):
            self._settle(value)
            lengths = relax.analysis.definable_tir_vars_in_type(binding.ty)
            run = max(self._latest(value, binding.ty), 0)
            self._put(binding, run)
            for length in lengths:
                self._lengths.setdefault(length, run)
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in self._home:
            # By itself: what else a kernel makes, as its workspace, need not live as long.
            self._put(binding, self._home[value.tuple_value])
        elif not isinstance(value, relax.Call) or is_call(value, *_VIEWS):
            self._views[binding.var] = binding
        elif is_call(value, *KERNEL_CALLS):
            device = self._device_of(binding.var)
            if device != self.runs[-1].device:
                self._begin_run(device)
            self._settle(value)
            self._put(binding)
        elif _packed(value) in (COPY, READ) and not self._changes_after(position, binding):
            self._settle(value)
            self._cross(binding)
        else:
            self._settle(value)
            self._put(binding)

    def _device_of(self, var: relax.Var) -> int:
        device = vdevice_of(var.ty)
        return CPU if device is not None and is_same(device, self._cpu) else GPU

    def _changes_after(self, position: int, copy: relax.Binding) -> bool:
        """Return whether a later kernel overwrites what is copied: the copy then has to stay."""
        sources = {copy.var, *reached(copy.value, self._lives.held)}
        return any(self._lives.overwritten.get(each, -1) > position for each in sources)

    def _cross(self, binding: relax.Binding) -> None:
        """Deal a copy to a run of the GPU, if there is one that it can go to."""
        if self._device_of(binding.var) == GPU:
            if self.runs[-1].device == CPU:
                self._writes.append(binding)
            else:
                self._put(binding)
            return
        here = len(self.runs) - 1
        made = self._latest(binding.value, binding.var.ty)
        made = here if made < 0 else made
        if self.runs[made].device == CPU:
            self._put(binding)
        elif made == here:
            self.runs[made].reads.append(binding)
            self._home[binding.var] = made
        else:
            self._put(binding, made)

    def _begin_run(self, device: int) -> None:
        self._end_run()
        self.runs.append(_Run(device))
        if device == GPU:
            copies, self._writes = self._writes, []
            for copy in copies:
                self._put(copy)

    def _end_run(self) -> None:
        last = self.runs[-1]
        last.bindings += last.reads
        last.reads = []

    def _settle(self, value: relax.Expr) -> None:
        """Let copies that this reads, and that were put off, happen before it."""
        made = self._made_of(value)
        if any(copy.var in made for copy in self.runs[-1].reads):
            self._end_run()
        put_off, self._writes = self._writes, []
        for copy in put_off:
            if copy.var in made:
                self._put(copy)
            else:
                self._writes.append(copy)

    def _put(self, binding: relax.Binding, run: int = -1) -> None:
        run %= len(self.runs)
        self.runs[run].bindings.append(binding)
        self._home[binding.var] = run

    def _made_of(self, value: relax.Expr) -> dict[relax.Var, None]:
        """The variables that a value needs, with the viewed tensors in place of views."""
        found: dict[relax.Var, None] = {}
        for var in relax.analysis.free_vars(value):
            if var in self._views:
                found.update(self._made_of(self._views[var].value))
            else:
                found[var] = None
        return found

    def _latest(self, value: relax.Expr, ty: relax.Type) -> int:
        """The first run after which a value, cast to this type, can be had; -1: before any."""
        runs = [self._home.get(var, -1) for var in self._made_of(value)]
        for each in (value.ty, ty):
            runs += [self._lengths.get(n, -1) for n in relax.analysis.tir_vars_in_type(each)]
        return max(runs, default=-1)

    def stages(self) -> list[Stage]:
        """A function for each run."""
        last = len(self.runs) - 1
        bodies = []
        for number, run in enumerate(self.runs):
            results = relax.Tuple([]) if number < last else self._results
            bodies.append(self._with_views(run.bindings, results))
        known = {var: -1 for var in self._main.params[:-1]} | self._home
        # What is needed in a run or later and made before it, in the order of making.
        needed: set[relax.Var] = set()
        handed: list[list[relax.Var]] = [[] for _ in self.runs]
        for number in range(last, 0, -1):
            values = [binding.value for binding in bodies[number]]
            values += [self._results] if number == last else []
            needed |= {var for value in values for var in relax.analysis.free_vars(value)}
            handed[number] = [var for var, run in known.items() if var in needed and run < number]
        return [
            Stage(run.device, self._stage(number, bodies[number], handed))
            for number, run in enumerate(self.runs)
        ]

    def _stage(
        self, number: int, body: list[relax.Binding], handed: list[list[relax.Var]]
    ) -> relax.Function:
        params = list(self._main.params)
        if number > 0:
            params = [*handed[number], self._weights]
            if lengths := self._lengths_before(number):
                params.insert(0, relax.Var("lengths", relax.ShapeType(lengths)))
        results = self._results
        if number + 1 < len(self.runs):
            lengths = self._lengths_before(number + 1)
            shape = [relax.ShapeExpr(lengths)] if lengths else []
            results = relax.BlockBuilder().normalize(relax.Tuple([*shape, *handed[number + 1]]))
        out = relax.Var("results", results.ty)
        return _function(self._main, params, [*body, relax.VarBinding(out, results)], out)

    def _lengths_before(self, number: int) -> list[tirx.Var]:
        return [length for length, run in self._lengths.items() if run < number]

    def _with_views(
        self, bindings: list[relax.Binding], results: relax.Expr
    ) -> list[relax.Binding]:
        """Bindings, and before them the views that they and the results need."""
        found: dict[relax.Var, relax.Binding] = {}

        def show(value: relax.Expr) -> None:
            for var in relax.analysis.free_vars(value):
                if var in self._views and var not in found:
                    show(self._views[var].value)
                    found[var] = self._views[var]

        for binding in bindings:
            show(binding.value)
            found[binding.var] = binding
        show(results)
        return list(found.values())


def _packed(value: relax.Expr) -> str:
    """The name of the function of the runtime that an expression calls; else empty."""
    if is_call(value, "relax.call_dps_packed", "relax.call_pure_packed"):
        function = value.args[0]
        if isinstance(function, relax.ExternFunc):
            return str(function.global_symbol)
    return ""
