"""Boards that measure: all of a key at once; what a candidate or a board does costs itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import pytest

import tvm_edge
from tests.marks import needs_opencl
from tests.rpc.conftest import KEY
from tests.rpc.conftest import Fleet as Boards
from tests.rpc.support import Board, free_port
from tests.runtime.support import until
from tests.tuning.made import conv, first_config
from tvm_edge.errors import DeviceLost, DeviceUnavailableError
from tvm_edge.hardware import resolve_target
from tvm_edge.rpc.agent import Agent, Call, Upload
from tvm_edge.tuning import board_sessions, fleet_threads
from tvm_edge.tuning import fleet as fleets
from tvm_edge.tuning.conv_problem import make_problem
from tvm_edge.tuning.fleet import Fleet
from tvm_edge.tuning.pool import Trial
from tvm_edge.tuning.tasks import legal_configs
from tvm_edge.tuning.worker import Done, Failed, Limits

CONV = conv()
QUICK = Limits(build=60, measure=20, rounds=2, seconds=0.001)
LONG = replace(QUICK, rounds=1, seconds=0.6)


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("problem") / "0.npz"
    make_problem(CONV).save(path)
    return path


@pytest.fixture(scope="module")
def trials(problem: Path) -> list[Trial]:
    """Four of one algorithm, far from each other."""
    configs = [c for c in legal_configs(CONV, resolve_target("llvm")) if c.algorithm == "direct"]
    return [Trial(CONV, config, problem) for config in configs[:: len(configs) // 4][:4]]


@pytest.fixture(scope="module")
def pair(fleet: Boards) -> Iterator[Fleet]:
    """Both boards."""
    with Fleet("llvm", None, fleet.tracker, KEY, 2, QUICK) as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Board, str]]:
    """A board without a tracker."""
    port = free_port()
    with Board.serving(tmp_path_factory.mktemp("single"), "--port", port) as board:
        board.offer()
        yield board, f"127.0.0.1:{port}"


@pytest.fixture
def single(server: tuple[Board, str]) -> tuple[Board, str]:
    """Return a board that is up again, whatever an earlier test has done to it."""

    def is_up() -> bool:
        with suppress(DeviceLost):
            tvm_edge.connect(server[1]).close()
            return True
        return False

    until(is_up)
    return server


@contextmanager
def limits(fleet: Fleet, changed: Limits) -> Iterator[None]:
    before, fleet.limits = fleet.limits, changed
    try:
        yield
    finally:
        fleet.limits = before


def measured(fleet: Fleet, trials: list[Trial]) -> dict[int, Done | Failed]:
    found: dict[int, Done | Failed] = {}
    for place, answer in fleet.run(trials):
        assert place not in found, "one result each"
        found[place] = answer
    assert sorted(found) == list(range(len(trials)))
    return found


def assert_timed(found: Any, rounds: int = QUICK.rounds) -> None:
    for answer in found:
        assert isinstance(answer, Done), answer
        assert len(answer.latencies) == rounds and all(s > 0 for s in answer.latencies)


def test_every_board_measures(
    pair: Fleet, trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[str] = []
    works = pair.sessions.forget_losses
    monkeypatch.setattr(
        pair.sessions, "forget_losses", lambda place: (places.append(place), works(place))
    )
    assert pair.sessions.size == 2
    with limits(pair, replace(QUICK, seconds=0.15)):
        assert_timed(measured(pair, trials * 2).values())
    assert len(set(places)) == 2 and len(places) == 8


def test_in_turns_on_one_board(pair: Fleet, trials: list[Trial]) -> None:
    right = make_problem(CONV)
    wrong = trials[1].problem.with_name("wrong.npz")
    replace(right, expected=right.expected + 1).save(wrong)
    asked = [trials[0], replace(trials[1], problem=wrong), trials[2]]
    first, second, third = pair.measure_in_turns(asked, 3, 0.001)
    assert_timed([first, third], 3)
    assert isinstance(second, Failed) and second.error == "WrongResult"
    assert "of the largest value" in second.message


def test_what_fails_costs_itself(pair: Fleet, trials: list[Trial]) -> None:
    """Not built; a wrong result; one that is hopeless is timed once."""
    absurd = replace(trials[0].config, knobs="no=knobs")
    right = make_problem(CONV)
    wrong = trials[0].problem.with_name("also_wrong.npz")
    replace(right, expected=right.expected + 1).save(wrong)
    found = measured(
        pair,
        [
            replace(trials[0], config=absurd),
            trials[1],
            replace(trials[2], problem=wrong),
            replace(trials[3], best=1e-12),
        ],
    )
    errors = [answer.error for answer in found.values() if isinstance(answer, Failed)]
    assert sorted(errors) == ["InvalidLaunch", "WrongResult"]
    assert_timed([found[1]])
    assert_timed([found[3]], 1)


@contextmanager
def killed(
    monkeypatch: pytest.MonkeyPatch, board: Board, address: str, times: int
) -> Iterator[None]:
    """The board's session is killed while it times a candidate, so many times."""
    call, left = Agent.call, times

    def killing(agent: Agent, request: Any, seconds: float) -> Any:
        nonlocal left
        timing = isinstance(request, Call) and request.function == "candidate_time"
        if left and timing and agent.address == address:
            left -= 1
            threading.Timer(0.1, board.session().kill).start()
        return call(agent, request, seconds)

    with monkeypatch.context() as patches:
        patches.setattr(Agent, "call", killing)
        yield
    assert not left


def test_a_board_that_is_away_for_long_is_waited_for(
    pair: Fleet, fleet: Boards, trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as another measures."""
    monkeypatch.setattr(board_sessions, "_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(board_sessions, "_ASK_SECONDS", 0.1)
    address = fleet.boards[0].address
    with limits(pair, LONG), killed(monkeypatch, fleet.boards[0], address, 1):
        assert_timed(measured(pair, trials).values(), 1)
    until(lambda: all(board.has_session for board in pair._boards))


def test_the_others_go_on(
    pair: Fleet, fleet: Boards, trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the board that is let alone, and with the candidate that it was lost with."""
    monkeypatch.setattr(board_sessions, "_MOST_LOSSES", 1)
    places: list[str] = []
    works = pair.sessions.forget_losses
    monkeypatch.setattr(
        pair.sessions, "forget_losses", lambda place: (places.append(place), works(place))
    )
    address = fleet.boards[0].address
    with limits(pair, LONG), killed(monkeypatch, fleet.boards[0], address, 1):
        assert_timed(measured(pair, trials[:3]).values(), 1)
    assert list(pair.sessions.quarantined) == [address]
    assert address not in places and len(places) == 3


def test_a_candidate_that_hangs_costs_itself(pair: Fleet, trials: list[Trial]) -> None:
    before = dict(pair.sessions.quarantined)
    with limits(pair, replace(QUICK, measure=0.2, seconds=60)):
        (answer,) = measured(pair, trials[:1]).values()
    assert isinstance(answer, Failed) and answer.error == "MeasureTimeout"
    assert_timed(measured(pair, trials).values())
    assert pair.sessions.quarantined == before


def test_sessions_that_are_killed(
    single: tuple[Board, str],
    trials: list[Trial],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A candidate is tried once more; at a third loss in a row it is the board's fault."""
    board, address = single
    with Fleet("llvm", None, address, None, 1, LONG) as fleet:
        with killed(monkeypatch, board, address, 1):
            assert_timed(measured(fleet, trials[:1]).values(), 1)
        with killed(monkeypatch, board, address, 2):
            (failed,) = measured(fleet, trials[:1]).values()
        assert isinstance(failed, Failed) and failed.error == "DeviceLost"
        assert not fleet.sessions.quarantined
        with (
            killed(monkeypatch, board, address, 1),
            pytest.raises(DeviceLost, match=f"no board .* is left .*{address}.*--resume"),
        ):
            assert not list(fleet.run(trials[:2])), "none of them has failed"
        assert list(fleet.sessions.quarantined) == [address]
    assert "was lost 3 times in a row" in caplog.text


def test_a_line_that_is_too_slow_is_no_hanging_candidate(
    single: tuple[Board, str], trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of an upload arrives for longer than it may take."""
    board, address = single
    call, uploads = Agent.call, 0

    def stuck(agent: Agent, request: Any, seconds: float) -> Any:
        nonlocal uploads
        if not isinstance(request, Upload):
            return call(agent, request, seconds)
        uploads += 1
        session = board.session()
        session.suspend()
        try:
            return call(agent, request, seconds)
        finally:
            session.resume()

    monkeypatch.setattr(Agent, "call", stuck)
    monkeypatch.setattr(fleet_threads, "_UPLOAD_SECONDS", 0.3)
    with Fleet("llvm", None, address, None, 1, QUICK) as fleet:
        (failed,) = measured(fleet, trials[:1]).values()
    assert isinstance(failed, Failed) and failed.error == "DeviceLost"
    assert "uploading" in failed.message and uploads == 2


def test_no_process_is_left(single: tuple[Board, str], trials: list[Trial]) -> None:
    """Ctrl-C while a board measures for a minute."""
    _, address = single
    before = set(psutil.Process().children())
    end = monotonic() + 1.5

    def interrupt() -> None:
        if monotonic() > end:
            raise KeyboardInterrupt

    limits = replace(LONG, seconds=60, measure=90)
    with (
        pytest.raises(KeyboardInterrupt),
        Fleet("llvm", None, address, None, 2, limits, check=interrupt) as fleet,
    ):
        end = monotonic() + 1.5
        list(fleet.run(trials))
    assert monotonic() - end < 10
    assert set(psutil.Process().children()) <= before  # one of another test may have ended
    assert threading.active_count() < 20


@needs_opencl
def test_on_opencl(single: tuple[Board, str], problem: Path) -> None:
    _, address = single
    trial = Trial(CONV, first_config(CONV, "direct", target="opencl"), problem)
    with Fleet("opencl", None, address, None, 1, QUICK) as fleet:
        assert "PoCL" in fleet.sessions.driver or fleet.sessions.driver
        assert_timed(measured(fleet, [trial]).values())


@needs_opencl
def test_a_board_with_another_device(
    single: tuple[Board, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain kind means this machine's device, which the board does not have."""
    here = resolve_target("opencl")
    other = replace(here, spec=replace(here.spec, name="Mali-T860"))
    monkeypatch.setattr(fleets, "resolve_target", lambda *_: other)
    with (
        pytest.raises(DeviceUnavailableError, match=r"is Mali-T860, and board .* has .*; name it"),
        closing(Fleet("opencl", None, single[1], None, 1)) as fleet,
        fleet,
    ):
        pass
