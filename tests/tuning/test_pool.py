"""Processes that measure: what one candidate does to its own costs the others nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

from tests.runtime.support import child_environment
from tests.tuning.made import conv, first_config
from tvm_edge.errors import DeviceLost
from tvm_edge.hardware import resolve_target
from tvm_edge.tuning.conv_problem import make_problem
from tvm_edge.tuning.pool import Pool, Trial
from tvm_edge.tuning.tasks import legal_configs
from tvm_edge.tuning.worker import Done, Failed, Limits

CONV = conv()
QUICK = Limits(build=60, measure=20, rounds=2, seconds=0.001)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool("llvm", 2, 1, QUICK) as made:
        made._build([], [])  # waits until they are there, whichever test comes first
        yield made


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("problem") / "0.npz"
    make_problem(CONV).save(path)
    return path


@pytest.fixture
def trials(problem: Path) -> list[Trial]:
    """Four of one algorithm, far from each other."""
    configs = [c for c in legal_configs(CONV, resolve_target("llvm")) if c.algorithm == "direct"]
    return [Trial(CONV, config, problem) for config in configs[:: len(configs) // 4][:4]]


@contextmanager
def limits(pool: Pool, **changes: float) -> Iterator[None]:
    before = pool.limits
    pool.limits = replace(before, **changes)
    try:
        yield
    finally:
        pool.limits = before


def measured(pool: Pool, trials: list[Trial]) -> dict[int, Done | Failed]:
    found: dict[int, Done | Failed] = {}
    for place, answer in pool.run(trials):
        assert place not in found, "one result each"
        found[place] = answer
    assert sorted(found) == list(range(len(trials)))
    return found


def assert_only(found: dict[int, Any], failed: int, error: str) -> Failed:
    """Trial `failed` failed of `error`, and the others were timed."""
    answer = found.pop(failed)
    assert isinstance(answer, Failed) and answer.error == error, answer
    for other in found.values():
        assert isinstance(other, Done) and all(s > 0 for s in other.latencies), other
    return answer


def test_every_trial_is_timed(pool: Pool, trials: list[Trial]) -> None:
    found = measured(pool, trials)
    for answer in found.values():
        assert isinstance(answer, Done) and len(answer.latencies) == QUICK.rounds
    turns = pool.measure_in_turns(trials, 3, 0.001)
    assert [len(answer.latencies) for answer in turns if isinstance(answer, Done)] == [3] * 4


def test_more_trials_than_workers_hold(problem: Path) -> None:
    """With one worker, whose first batch is full."""
    config = first_config(CONV, "direct")
    with Pool("llvm", 1, 1, QUICK) as pool:
        found = measured(pool, [Trial(CONV, config, problem)] * 11)
        assert all(isinstance(answer, Done) for answer in found.values())


def test_a_hopeless_candidate_is_timed_once(pool: Pool, trials: list[Trial]) -> None:
    found = measured(pool, [trials[0], replace(trials[1], best=1e-12)])
    assert [len(found[i].latencies) for i in (0, 1)] == [QUICK.rounds, 1]  # type: ignore[union-attr]


def test_a_wrong_result(pool: Pool, trials: list[Trial], tmp_path: Path) -> None:
    right = make_problem(CONV)
    replace(right, expected=right.expected + 1).save(tmp_path / "wrong.npz")
    trials[1] = replace(trials[1], problem=tmp_path / "wrong.npz")
    failed = assert_only(measured(pool, trials), 1, "WrongResult")
    assert "of the largest value" in failed.message
    turns = dict(enumerate(pool.measure_in_turns(trials, 1, 0.001)))
    assert_only(turns, 1, "WrongResult")


def processes(pool: Pool) -> set[int]:
    return {worker.process.pid for worker in pool._workers}


def test_kernels_that_failed_take_their_process_along(
    pool: Pool, trials: list[Trial], tmp_path: Path
) -> None:
    """They may have written anywhere. One that was not even built has not."""
    before = processes(pool)
    absurd = replace(trials[0].config, knobs="no=knobs")
    assert_only(measured(pool, [replace(trials[0], config=absurd), trials[1]]), 0, "InvalidLaunch")
    assert processes(pool) == before
    right = make_problem(CONV)
    replace(right, expected=right.expected + 1).save(tmp_path / "wrong.npz")
    wrong = replace(trials[1], problem=tmp_path / "wrong.npz")
    assert_only(measured(pool, [trials[0], wrong, trials[2]]), 1, "WrongResult")
    assert len(processes(pool) & before) == len(before) - 1


def test_a_damaged_problem_and_an_unknown_configuration(
    pool: Pool, trials: list[Trial], tmp_path: Path
) -> None:
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 and no more")
    damaged = [trials[0], replace(trials[1], problem=tmp_path / "damaged.npz"), trials[2]]
    assert_only(measured(pool, damaged), 1, "InvalidLaunch")
    absurd = replace(trials[0].config, knobs="no=knobs")
    foreign = [replace(trials[0], config=absurd), trials[1]]
    assert_only(measured(pool, foreign), 0, "InvalidLaunch")


def test_one_that_hangs_while_it_is_built(pool: Pool, trials: list[Trial], tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to blocks for ever."""
    os.mkfifo(tmp_path / "pipe.npz")
    trials[2] = replace(trials[2], problem=tmp_path / "pipe.npz")
    with limits(pool, build=2):
        failed = assert_only(measured(pool, trials), 2, "MeasureTimeout")
    assert failed.message


@contextmanager
def deadly(pool: Pool, path: Path) -> Iterator[None]:
    """Make a problem whose reader is killed while it reads."""
    os.mkfifo(path)

    def kill() -> None:
        end, pipe = monotonic() + 30, None
        while monotonic() < end:
            with suppress(OSError):  # until there is a reader, which then waits for what we write
                pipe = pipe or os.open(path, os.O_WRONLY | os.O_NONBLOCK)
                for worker in pool._workers:
                    files = Path(f"/proc/{worker.process.pid}/fd").iterdir()
                    if path in {Path(os.readlink(file)) for file in files}:
                        worker.process.kill()
                        os.close(pipe)
                        return
            sleep(0.01)

    thread = Thread(target=kill, daemon=True)
    thread.start()
    yield
    thread.join(30)
    assert not thread.is_alive()


def test_one_that_takes_its_process_along(pool: Pool, trials: list[Trial], tmp_path: Path) -> None:
    """Its process has built others, which are built again."""
    path = tmp_path / "pipe.npz"
    for ask in (measured, lambda pool, trials: dict(enumerate(in_turns(pool, trials)))):
        with deadly(pool, path):
            found = ask(pool, [*trials, replace(trials[0], problem=path)])
        failed = assert_only(found, len(trials), "DeviceLost")
        assert "-9" in failed.message
        path.unlink()


def in_turns(pool: Pool, trials: list[Trial]) -> list[Done | Failed]:
    found = pool.measure_in_turns(trials, 2, 0.001)
    assert all(len(answer.latencies) == 2 for answer in found if isinstance(answer, Done))
    return found


def test_all_processes_die_while_they_wait(pool: Pool, trials: list[Trial]) -> None:
    """Whose fault it was nobody knows: a trial each, and no more."""
    for worker in pool._workers:
        worker.process.kill()
    found = measured(pool, trials)
    lost = [answer for answer in found.values() if isinstance(answer, Failed)]
    assert [answer.error for answer in lost] == ["DeviceLost"] * 2
    again = measured(pool, trials)
    assert all(isinstance(answer, Done) for answer in again.values())


def test_a_process_that_does_not_start(trials: list[Trial]) -> None:
    with Pool("llvm", 1, 1, QUICK) as pool, pytest.raises(DeviceLost, match="does not start"):
        pool._workers[0].process.kill()
        list(pool.run(trials))


def test_closing_leaves_no_process(trials: list[Trial]) -> None:
    """Whatever they do: one of them starts, one builds."""
    pool = Pool("llvm", 2, 1, QUICK)
    with pool:
        processes = [psutil.Process(worker.process.pid) for worker in pool._workers]
        next(iter(pool.run(trials)))
        assert all(process.is_running() for process in processes)
    assert not any(process.is_running() for process in processes)
    early = Pool("llvm", 1, 1, QUICK)
    with early:
        (process,) = [psutil.Process(worker.process.pid) for worker in early._workers]
    assert not process.is_running()


PARENT = """
import sys
from pathlib import Path
from tests.tuning.made import conv, first_config
from tvm_edge.tuning.pool import Pool, Trial
with Pool("llvm", 2, 1) as pool:
    config = first_config(conv(), "direct")
    hangs = Trial(conv(), config, Path(sys.argv[1]))
    fine = Trial(conv(), config, Path(sys.argv[2]))
    pool.measure_in_turns([fine, fine], 1, 0.001)
    print(*(worker.process.pid for worker in pool._workers), flush=True)
    list(pool.run([hangs]))
"""


def test_a_killed_tuner_leaves_no_process(tmp_path: Path, problem: Path) -> None:
    """Not even one that hangs, which sees no connection close."""
    pipe = tmp_path / "pipe.npz"
    os.mkfifo(pipe)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(pipe), str(problem)],
        env=child_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    writer = os.open(pipe, os.O_WRONLY)  # returns when one of them reads
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)
    try:
        gone, alive = psutil.wait_procs(workers, timeout=10)
    finally:
        os.close(writer)
    assert len(gone) == 2 and not alive


def states(pool: Pool) -> list[str]:
    """Return the states of the pool's processes; one whose threads sleep is not stopped."""
    return [psutil.Process(w.process.pid).status() for w in pool._workers]


def test_on_a_cpu_the_others_stop_while_one_measures(pool: Pool, trials: list[Trial]) -> None:
    seen = []
    for _ in pool.run(trials):
        seen.append(states(pool).count(psutil.STATUS_STOPPED))
    assert seen == [1] * len(trials), "between two measurements as well"
    assert psutil.STATUS_STOPPED not in states(pool)
    pool.measure_in_turns(trials[:2], 1, 0.001)
    assert psutil.STATUS_STOPPED not in states(pool)


def test_beside_a_gpu_none_stops(problem: Path, trials: list[Trial]) -> None:
    with Pool("llvm", 2, 1, QUICK, beside=True) as pool:
        found = {}
        for place, answer in pool.run(trials):
            assert psutil.STATUS_STOPPED not in states(pool)
            found[place] = answer
        wrong = make_problem(CONV, 1)
        damaged = problem.with_name("damaged.npz")
        replace(wrong, expected=wrong.expected + 1).save(damaged)
        some = dict(pool.run([trials[0], replace(trials[1], problem=damaged), trials[2]]))
    assert sorted(found) == [0, 1, 2, 3] and all(isinstance(a, Done) for a in found.values())
    assert_only(some, 1, "WrongResult")
