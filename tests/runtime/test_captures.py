"""While a run records a CUDA graph no other thread uses the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from time import sleep
from typing import Any

import numpy as np
import pytest

import tvm_edge
from tests.onnx_models import conv_relu, random_input, reference, relative_error
from tests.runtime.test_concurrency import at_once
from tvm_edge.runtime import session
from tvm_edge.runtime.captures import Captures

SMALL = (1, 3, 16, 16)


class Watched:
    """Counts who is inside, and what they met there."""

    def __init__(self) -> None:
        self.captures = Captures()
        self.inside: list[str] = []
        self.met: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def visit(self, way: str) -> None:
        with getattr(self.captures, way)():
            with self._lock:
                self.inside.append(way)
                self.met.add(tuple(sorted(self.inside)))
            sleep(0.002)
            with self._lock:
                self.inside.remove(way)


def test_one_alone_or_many() -> None:
    watched = Watched()
    ways = ["shared", "shared", "alone", "shared", "alone", "shared"] * 8
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(watched.visit, ways))
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

    def visit(name: str, way: Callable[[], Any]) -> None:
        with way():
            order.append(name)

    with ThreadPoolExecutor(3) as pool:
        pool.submit(first)
        inside.wait(10)
        waiting = pool.submit(visit, "alone", captures.alone)
        while not captures._alone:
            sleep(0.001)
        later = pool.submit(visit, "later", captures.shared)
        sleep(0.01)
        assert not order
        leave.set()
        waiting.result(10), later.result(10)
    assert order == ["alone", "later"]


@pytest.mark.parametrize("outer", ["shared", "alone"])
@pytest.mark.parametrize("inner", ["shared", "alone"])
def test_a_thread_may_take_it_again_and_what_fails_gives_it_back(outer: str, inner: str) -> None:
    captures = Captures()
    with pytest.raises(ValueError, match="inside"), getattr(captures, outer)():
        with getattr(captures, inner)():
            pass
        raise ValueError("inside")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: captures.alone().__enter__()).result(10) is None


def test_the_first_run_of_each_entry_and_shape_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this CPU, with a session that takes it for a CUDA device whose launches are recorded."""
    model = tvm_edge.compile(conv_relu(SMALL), "llvm")
    own, x = model._session, {"data": random_input(SMALL)}
    monkeypatch.setattr(own, "_cuda", object())
    monkeypatch.setattr(own, "_stream", nullcontext)
    taken: list[str] = []

    class Noted(Captures):
        def shared(self) -> Any:
            taken.append("shared")
            return super().shared()

        def alone(self) -> Any:
            taken.append("alone")
            return super().alone()

    monkeypatch.setattr(session, "CAPTURES", Noted())
    for recorded, expected in ((True, ["alone", "shared"]), (False, ["shared", "shared"])):
        monkeypatch.setattr(own, "_launches_recorded", recorded)
        taken.clear()
        for _ in range(2):
            model.run(x)
        assert taken == expected


def test_two_models_run_for_the_first_time_at_once(gpu: str) -> None:
    """On CUDA both record."""
    graph, x = conv_relu(SMALL), {"data": random_input(SMALL)}
    expected = reference(graph, x)
    for _ in range(3):
        models = [tvm_edge.compile(graph, gpu, fallback="none") for _ in range(3)]
        for found in at_once(*(lambda model=model: model.run(x) for model in models)):
            for name, value in expected.items():
                assert relative_error(np.asarray(found[name]), value) < 1e-5
