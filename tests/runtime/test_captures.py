"""While a run records a CUDA graph no other thread uses the driver."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from time import sleep
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_edge
from tests.compiler.steps import lowered as lowered_model
from tests.onnx_models import conv_relu, random_input, reference, relative_error
from tests.runtime.support import at_once
from tvm_edge.compiler import pipeline
from tvm_edge.relay_passes.instructions import record_on_opencl
from tvm_edge.runtime import captures, session
from tvm_edge.runtime.captures import RECORDING, Captures, Turn
from tvm_edge.runtime.devices.cpu import CpuDevice
from tvm_edge.runtime.devices.cuda import CudaDevice

SMALL = (1, 3, 16, 16)

RUN = "vm.builtin.cuda_graph.run_or_capture"
ALLOCATE = "vm.builtin.cuda_graph.get_cached_alloc"


class Watched:
    """Counts who is inside, and what they met there."""

    def __init__(self) -> None:
        self.captures = Captures()
        self.inside: list[str] = []
        self.met: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def visit(self, way: str) -> None:
        with self.captures.shared():
            if way == "alone":
                sleep(0.001)  # what others share with it
                self.captures.stay_alone()
            with self._lock:
                self.inside.append(way)
                self.met.add(tuple(sorted(self.inside)))
            sleep(0.002)
            with self._lock:
                self.inside.remove(way)


def test_one_alone_or_many() -> None:
    """Those that want it alone come to it while they share it, several at a time."""
    watched = Watched()
    ways = ["shared", "shared", "alone", "shared", "alone", "shared"] * 8
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(watched.visit, ways, timeout=60))
    assert ("alone",) in watched.met
    assert not [found for found in watched.met if "alone" in found and len(found) > 1]
    assert ("shared", "shared") in watched.met


def test_whoever_waits_goes_before_those_that_come_later() -> None:
    captures, order = Captures(), []
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with captures.shared():
            inside.set()
            leave.wait(10)

    def visit(name: str) -> None:
        with captures.shared():
            if name == "alone":
                captures.stay_alone()
            order.append(name)

    with ThreadPoolExecutor(3) as pool:
        pool.submit(first)
        inside.wait(10)
        waiting = pool.submit(visit, "alone")
        while not captures._alone:
            sleep(0.001)
        later = pool.submit(visit, "later")
        sleep(0.01)
        assert not order
        leave.set()
        waiting.result(10), later.result(10)
    assert order == ["alone", "later"]


@pytest.mark.parametrize("alone", [False, True])
def test_a_thread_may_take_it_again_and_what_fails_gives_it_back(alone: bool) -> None:
    captures = Captures()
    with pytest.raises(ValueError, match="inside"), captures.shared():
        if alone:
            captures.stay_alone()
            captures.stay_alone()
        with captures.shared():
            pass
        assert bool(captures._alone) is alone  # what is inside gives nothing back
        raise ValueError("inside")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: captures.shared().__enter__()).result(10)


def test_code_that_no_session_runs_waits_for_nobody() -> None:
    captures = Captures()
    captures.stay_alone()
    assert not captures._alone


# ------------------------------------------------------------------------- what the compiler writes


@I.ir_module
class Branching:
    """Kernels, one of two chains of others, as an input says, and kernels behind them."""

    @R.function
    def main(data: R.Tensor((4, 16), "float32"), which: R.Tensor((), "bool")) -> R.Tensor(
        (4, 16), "float32"
    ):
        a = R.nn.softmax(data)
        b = R.nn.softmax(a)
        c = R.nn.softmax(b)
        if which:
            d = R.nn.log_softmax(c)
            e = R.nn.log_softmax(d)
            f = R.nn.log_softmax(e)
            chosen = R.nn.log_softmax(f)
        else:
            d = R.nn.softmax(c)
            e = R.nn.softmax(d)
            f = R.nn.softmax(e)
            chosen = R.nn.softmax(f)
        g = R.nn.softmax(chosen)
        h = R.nn.softmax(g)
        return R.nn.softmax(h)


def test_what_is_recorded_says_so_first() -> None:
    """In ``main`` and in branches, and nothing else does: a replay calls nothing."""
    lowered = lowered_model(Branching, "jetson-orin-nano", "none", host="llvm").module
    functions = {
        gvar.name_hint: func
        for gvar, func in lowered.functions_items()
        if isinstance(func, relax.Function)
    }
    said = {name for name, func in functions.items() if RECORDING in str(func)}
    assert said == {name for name in functions if "capture" in name}
    assert len(said) == 3
    for name in said:
        body = str(functions[name])
        kernels = [body.find(f"    {g.name_hint}(") for g, _ in lowered.functions_items()]
        assert body.index(RECORDING) < min(found for found in kernels if found >= 0)


# ---------------------------------------------------------------------------------- what a run does


class Recorder:
    """Does for code of the CPU what TVM's runtime does on CUDA, with results of the first run."""

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}
        self._invoke = tvm_ffi.get_global_func("vm.builtin.invoke_closure")

    def run(self, machine: Any, function: Any, arguments: Any, index: int) -> Any:
        if ("region", index) not in self.kept:
            for _ in ("to warm up", "to record"):
                result = self._invoke(machine, function, *arguments)
            self.kept["region", index] = result
        return self.kept["region", index]

    def allocate(self, machine: Any, function: Any, index: int) -> Any:
        if ("storage", index) not in self.kept:
            self.kept["storage", index] = self._invoke(machine, function)
        return self.kept["storage", index]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """The CPU's code is compiled as CUDA's is, its regions for what this returns."""
    found = Recorder()
    names = {RUN: "tests.captures.run", ALLOCATE: "tests.captures.allocate"}
    tvm_ffi.register_global_func(names[RUN], found.run, override=True)
    tvm_ffi.register_global_func(names[ALLOCATE], found.allocate, override=True)
    monkeypatch.setattr(record_on_opencl, "_OURS", names)
    passes = frozenset(("AnnounceRecordings", "RecordOnOpenCL"))
    monkeypatch.setattr(pipeline, "RECORDINGS", {"llvm": passes})
    return found


class Noted(Captures):
    """Keeps how runs had the lock."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[str] = []

    @contextmanager
    def shared(self) -> Iterator[Turn]:
        with super().shared() as turn:
            self.taken.append("shared")
            yield turn

    def stay_alone(self, last: bool = False) -> None:
        super().stay_alone(last)
        self.taken.append("alone")
        assert self._alone and not self._sharing


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    """Recorder of the turns, shared or alone, that runs of this process take."""
    found = Noted()
    monkeypatch.setattr(captures, "CAPTURES", found)
    return found


class CpuThatCaptures(CpuDevice):
    """The CPU, with a driver that is to be had for runs as CUDA's is."""

    is_host = False
    may_capture = True

    @classmethod
    def driver(cls) -> Any:
        return CudaDevice.driver()


def as_on_cuda(model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model compiled for this CPU, whose session takes it for a CUDA device."""
    found = tvm_edge.compile(model, "llvm")
    monkeypatch.setattr(found._session, "_main_device", CpuThatCaptures())
    return found


def test_a_run_that_records_is_alone_whichever_it_is(
    recorder: Recorder, noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = as_on_cuda(Branching, monkeypatch)

    def taken(which: bool) -> list[str]:
        noted.taken.clear()
        model.run({"data": random_input((4, 16)), "which": np.array(which)})
        return noted.taken

    twice = ["alone", "alone"]  # a region's function is called to warm up, and to be recorded
    assert taken(True) == ["shared", *twice, *twice, *twice]  # in front, in the branch, behind
    assert taken(True) == ["shared"]
    assert taken(False) == ["shared", *twice]  # the other branch, in the third run
    assert taken(False) == taken(True) == ["shared"]
    assert not noted._alone and not noted._sharing


@I.ir_module
class Straight:
    @R.function
    def main(data: R.Tensor((4, 16), "float32")) -> R.Tensor((4, 16), "float32"):
        with R.dataflow():
            a = R.nn.softmax(data)
            b = R.nn.softmax(a)
            c = R.nn.softmax(b)
            d = R.nn.softmax(c)
            R.output(d)
        return d


@pytest.mark.parametrize(("model", "expected"), [(Straight, [1, 0, 0]), (Branching, [1, 1, 1])])
def test_ctrl_c_is_held_back_where_a_run_may_record(
    recorder: Recorder,
    noted: Noted,
    monkeypatch: pytest.MonkeyPatch,
    model: Any,
    expected: list[int],
) -> None:
    """To hold it back takes system calls: not for a model that has recorded all there is."""
    held: list[None] = []

    def defer() -> Any:
        held.append(None)
        return nullcontext()

    monkeypatch.setattr(session, "hold_interrupts", defer)
    compiled = as_on_cuda(model, monkeypatch)
    x = {"data": random_input((4, 16)), "which": np.array(True)}
    found = []
    for _ in expected:
        held.clear()
        compiled.run({name: x[name] for name in [spec.name for spec in compiled.inputs]})
        found.append(len(held))
    assert found == expected


def test_a_run_that_has_the_driver_waits_for_nothing_else(
    noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever records waits for it, maybe with what it would wait for."""
    model = as_on_cuda(conv_relu(SMALL), monkeypatch)
    found: list[bool] = []

    class Parts:
        @contextmanager
        def running(self, *, on_gpu: bool) -> Iterator[None]:
            """Waits for others of the session that read weights part by part."""
            found.append(bool(noted._sharing))
            yield

    monkeypatch.setattr(model._session, "_parts", Parts())
    model.run({"data": random_input(SMALL)})
    model.profile({"data": random_input(SMALL)})
    model.benchmark({"data": random_input(SMALL)}, repeat=1, warmup=0)
    assert found and not any(found)


def test_runs_on_a_cpu_take_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    class Untouched:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"a run on the CPU asks for {name!r} of the lock")

    monkeypatch.setattr(captures, "CAPTURES", Untouched())
    model, x = tvm_edge.compile(conv_relu(SMALL), "llvm"), {"data": random_input(SMALL)}
    model.run(x)
    model.run_async(x).result()
    model.warmup()
    model.benchmark(x, repeat=1)
    model.profile(x)
    assert len(list(model.stream([x, x]))) == 2


def test_two_models_run_for_the_first_time_at_once(gpu: str) -> None:
    """On CUDA both record."""
    graph, x = conv_relu(SMALL), {"data": random_input(SMALL)}
    expected = reference(graph, x)
    for _ in range(3):
        models = [tvm_edge.compile(graph, gpu, fallback="none") for _ in range(3)]
        for found in at_once(*(lambda model=model: model.run(x) for model in models)):
            for name, value in expected.items():
                assert relative_error(np.asarray(found[name]), value) < 1e-5
