"""What a model makes at its first use is made once, whatever threads ask for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from tvm_edge.runtime.once import once


class Counted:
    """Its value is how often it was made; making it waits until another thread is known to ask."""

    def __init__(self, waits: float) -> None:
        self.made = 0
        self.started = threading.Event()
        self.released = threading.Event()
        self._waits = waits

    @once
    def value(self) -> int:
        self.made += 1
        self.started.set()
        self.released.wait(self._waits)
        return self.made


def test_threads_get_the_same_value() -> None:
    counted = Counted(waits=0.05)  # time for other threads, which find no value yet
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: counted.value, range(8))) == [1] * 8
    assert counted.made == 1


def test_other_objects_do_not_wait() -> None:
    held, free = Counted(waits=30), Counted(waits=0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: held.value)
        assert held.started.wait(10)
        assert pool.submit(lambda: free.value).result(10) == 1
        assert not first.done()
        held.released.set()
        assert first.result(10) == 1


def test_the_class_shows_what_it_is() -> None:
    assert isinstance(Counted.value, once)
