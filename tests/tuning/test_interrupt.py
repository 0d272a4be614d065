"""Ctrl-C is noted wherever it comes, and raised where it is asked for."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tvm_edge.tuning.interrupt import Interrupt


def control_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Swallows:
    """A finaliser, which cannot raise."""

    def __del__(self) -> None:
        control_c()


def test_it_is_not_lost_in_a_finaliser() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        interrupt.check()
        swallows = Swallows()
        del swallows
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_one_comes_at_once() -> None:
    with Interrupt():
        control_c()
        with pytest.raises(KeyboardInterrupt):
            control_c()


def test_another_thread_leaves_signals_alone() -> None:
    found = []

    def run() -> None:
        with Interrupt() as interrupt:
            interrupt.check()
            found.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before]
