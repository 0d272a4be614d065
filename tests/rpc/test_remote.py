"""Models on a board give what they give at home."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
import tvm

import tvm_edge
from tests.onnx_models import conv_relu
from tests.rpc.conftest import KEY, Fleet
from tvm_edge.errors import DeviceLost, DeviceUnavailableError, InputError
from tvm_edge.rpc.agent import Call, Upload, open_session
from tvm_edge.rpc.tracker import Served, served_keys


@pytest.mark.parametrize("name", ["artifact", "on_both"])
def test_outputs_are_those_of_a_run_here(
    board: tvm_edge.Remote, name: str, image: np.ndarray, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    expected, there = tvm_edge.load(path), tvm_edge.load(path, remote=board)
    assert there.inputs == expected.inputs and there.outputs == expected.outputs
    assert there.report == expected.report
    for values in ({"data": image}, {"data": tvm.runtime.tensor(image)}):
        (found,), (wanted,) = there.run(values).items(), expected.run({"data": image}).items()
        assert found[0] == wanted[0]
        np.testing.assert_array_equal(found[1], wanted[1])
        assert found[1].flags.writeable, "the caller's own"
    assert there.run({"data": image}, outputs=[]) == {}


def test_measurements(board: tvm_edge.Remote, artifact: Path, image: np.ndarray) -> None:
    here, there = tvm_edge.load(artifact), tvm_edge.load(artifact, remote=board, num_threads=1)
    there.warmup()
    for inputs in (None, {"data": image}):
        result = there.benchmark(inputs, warmup=0, repeat=3)
        assert isinstance(result, tvm_edge.BenchmarkResult)
        assert (result.repeat, result.num_threads) == (3, 1)
        assert 0 < result.device.min <= result.device.max
        profile = there.profile(inputs, repeat=2)
        assert isinstance(profile, tvm_edge.Profile)
        assert [row.name for row in profile.kernels] == [k.name for k in here.report.kernels]
        assert profile.kernels[0].operators == here.report.kernels[0].operators
        assert profile.table(1) and result.to_dict()["end_to_end"]["median"] > 0


def test_errors_keep_their_class(board: tvm_edge.Remote, artifact: Path, image: np.ndarray) -> None:
    there = tvm_edge.load(artifact, remote=board)
    with pytest.raises(InputError, match="the shape") as caught:
        there.run({"data": image[..., 1:]})
    assert caught.value.name == "data"
    with pytest.raises(InputError, match="no output 'pooledd'; did you mean 'pooled'"):
        there.run({"data": image}, outputs=["pooledd"])
    with pytest.raises(DeviceUnavailableError, match=f"on board {KEY}: .*'opencl'"):
        tvm_edge.load(artifact, device="opencl", remote=board)
    with pytest.raises(InputError, match=f"on board {KEY}: .*num_threads") as caught:
        tvm_edge.load(artifact, num_threads=0, remote=board)
    assert caught.value.name == "num_threads", "what an error carries comes along"
    with pytest.raises(InputError, match="repeat is 0"):
        there.benchmark(repeat=0)
    with pytest.raises(InputError, match="no function 'nothing'"):
        board.request(Call("nothing"))
    with pytest.raises(RuntimeError, match=f"on board {KEY}: TypeError"):
        board.request(Call("run"))
    np.testing.assert_array_equal(
        there.run({"data": image})["pooled"], tvm_edge.load(artifact).run({"data": image})["pooled"]
    )


def test_a_stream(board: tvm_edge.Remote, artifact: Path, image: np.ndarray) -> None:
    there, here = tvm_edge.load(artifact, remote=board), tvm_edge.load(artifact)
    frames = [{"data": image + i} for i in range(4)]
    wrong: dict[str, np.ndarray] = {"data": image[..., 1:]}
    with there.stream([frames[0], wrong, *frames[1:]]) as stream:
        found = [next(stream)]
        with pytest.raises(InputError, match="the shape"):
            next(stream)
        found += stream
    for outputs, inputs in zip(found, frames, strict=True):
        np.testing.assert_array_equal(outputs["pooled"], here.run(inputs)["pooled"])


def test_what_stays_at_home(board: tvm_edge.Remote, artifact: Path, image: np.ndarray) -> None:
    there = tvm_edge.load(artifact, remote=board)
    with pytest.raises(InputError, match="NumPy arrays"):
        there.run({"data": image}, device_outputs=True)
    with pytest.raises(InputError, match="in a thread of yours"):
        there.run_async({"data": image})
    with pytest.raises(InputError, match="copy the artifact"):
        there.export("model.tvme")
    there.close()
    with pytest.raises(InputError, match="load it again"):
        there.warmup()


def test_a_file_is_sent_once(fleet: Fleet, artifact: Path) -> None:
    """To a board, also by the next session; and what was sent in pieces is whole."""
    places = []
    for _ in range(2):
        with tvm_edge.connect(fleet.tracker, KEY) as board:
            name = board.request(Upload(artifact))
        path = fleet.uploads / name
        assert path.read_bytes() == artifact.read_bytes()
        places.append(path.stat().st_ino)
    assert places[0] == places[1]


def test_threads_share_a_board(board: tvm_edge.Remote, artifact: Path) -> None:
    here, there = tvm_edge.load(artifact), tvm_edge.load(artifact, remote=board)
    images = [np.full((1, 3, 16, 16), i, "float32") for i in range(6)]
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda value: there.run({"data": value})["pooled"], images))
    for value, output in zip(images, found, strict=True):
        np.testing.assert_array_equal(output, here.run({"data": value})["pooled"])


def test_a_session_outlives_the_thread_that_opened_it(fleet: Fleet) -> None:
    with ThreadPoolExecutor(1) as threads:
        board = threads.submit(tvm_edge.connect, fleet.tracker, KEY).result()
    with board:
        assert board.describe().devices


def test_what_a_board_says_of_itself(board: tvm_edge.Remote) -> None:
    info = board.describe()
    assert info.versions["tvm"] == tvm.__version__
    assert info.devices[0].target == "llvm" and info.devices == tuple(board.devices())
    assert json.loads(json.dumps(info.to_dict())) and KEY == board.key and KEY in repr(board)
    targets = {device.target: device for device in info.devices}
    if tvm.runtime.enabled("opencl") and tvm.opencl(0).exist:
        assert targets["opencl"].name == tvm.opencl(0).device_name and targets["opencl"].driver
    found = {check.name: check for check in board.doctor().checks}
    assert {"OpenCL", "CPU clocks", "temperature"} <= set(found)


def test_two_boards_of_a_key(fleet: Fleet, artifact: Path, image: np.ndarray) -> None:
    """Both are taken, each by one; then all are busy, until one is given back."""
    tracker = ("127.0.0.1", int(fleet.tracker.rpartition(":")[2]))
    with tvm_edge.connect(fleet.tracker, KEY), tvm_edge.connect(fleet.tracker, KEY) as second:
        assert all(board.listener.children() for board in fleet.boards)
        assert served_keys(tracker) == {KEY: Served(2, 0)}
        start = monotonic()
        with pytest.raises(DeviceUnavailableError, match=r"all 2 boards of the key 'twin'.*busy"):
            tvm_edge.connect(fleet.tracker, KEY, timeout=1)
        assert monotonic() - start < 30
        with ThreadPoolExecutor(1) as threads:
            third = threads.submit(tvm_edge.connect, fleet.tracker, KEY)
            second.close()
            with third.result() as board:
                assert tvm_edge.load(artifact, remote=board).run({"data": image})
    with pytest.raises(DeviceLost, match=r"closed.*connect again"):
        board.describe()


def test_an_agent_asks_and_waits(fleet: Fleet) -> None:
    """As tuning does: the connection is ready when there is an answer."""
    from multiprocessing.connection import wait

    agents = [open_session(fleet.tracker, KEY, seconds=30) for _ in range(2)]
    try:
        offers = {board.address for board in fleet.boards}
        assert {agent.address for agent in agents} == offers, "boards of a key are told apart"
        for agent in agents:
            agent.ask(Call("hello"), 20)
            assert 0 < agent.deadline - monotonic() <= 20
        for agent in agents:
            assert wait([agent.connection], 20) == [agent.connection]
            assert agent.answer().values["host"] == agent.info.host
    finally:
        for agent in agents:
            agent.close()
        assert all(agent.is_lost for agent in agents)


def test_some_of_several_models(board: tvm_edge.Remote, image: np.ndarray, tmp_path: Path) -> None:
    models = {"left": conv_relu(), "right": conv_relu(1)}
    path = tvm_edge.compile(models, "llvm").export(tmp_path / "both.tvme")
    here, there = tvm_edge.load(path), tvm_edge.load(path, remote=board)
    assert there.models == ("left", "right")
    values = {"left/data": image, "right/data": -image}
    for chosen in (None, ["right"]):
        expected = here.run(values, models=chosen)
        found = there.run(values, models=chosen)
        assert list(found) == list(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
    there.warmup(models=["left"])
    assert there.benchmark(models=["left"], warmup=0, repeat=1).repeat == 1
    rows = there.profile({"left/data": image}, models=["left"], repeat=1).kernels
    assert [row.name for row in rows] == [k.name for k in here.report.models[0].kernels]
    with pytest.raises(InputError, match="no model 'middle'"):
        there.warmup(models=["middle"])
