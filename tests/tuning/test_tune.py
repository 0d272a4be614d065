"""Runs from end to end: what they leave, how they resume, and what they refuse."""

from __future__ import annotations

import json
import math
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import onnx
import pytest
from filelock import FileLock, Timeout
from onnx import TensorProto, helper

import tvm_edge
from tests.onnx_models import make_model, random_input, reference, relative_error
from tests.records.made import measured
from tests.runtime.support import child_environment
from tests.tuning.made import INPUTS, network, records_of
from tests.tuning.stand_in import StandIn
from tests.workflow.networks import network as pictures_network
from tvm_edge.errors import RecordError, TuningError
from tvm_edge.hardware import resolve_target
from tvm_edge.records import store_of, stores_below
from tvm_edge.tuning import Progress, TuneResult, measurer, run
from tvm_edge.tuning.device_lock import DeviceLock
from tvm_edge.tuning.pool import Trial
from tvm_edge.tuning.search import Search, TaskSearch
from tvm_edge.tuning.tasks import extract_tasks
from tvm_edge.tuning.worker import Done, Failed


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return network()


def tried(folder: Path) -> set[tuple[str, str]]:
    return {(record.workload.digest, record.config_hash) for record in records_of(folder)}


# ------------------------------------------------------------------------------- real processes


def test_what_is_tuned_is_taken(model: onnx.ModelProto, tmp_path: Path) -> None:
    """By real processes, beside a database that is damaged."""
    path = store_of(tmp_path, resolve_target("llvm").spec.key)
    path.parent.mkdir(parents=True)
    path.write_bytes(np.random.default_rng(0).bytes(8192))
    seen: list[Progress] = []
    with pytest.warns(tvm_edge.TvmEdgeWarning, match="damaged") as caught:
        result = tvm_edge.tune(
            model, "llvm", trials=12, tuning_logs=tmp_path, callbacks=[seen.append]
        )
    ours = [w for w in caught if issubclass(w.category, tvm_edge.TvmEdgeWarning)]
    assert len(ours) == 1 and len(list(path.parent.glob("*.damaged-*"))) == 1
    assert result.trials == 12 and result.failed == 0 and not result.interrupted
    assert [task.count for task in result.tasks] == [2, 1]
    assert sum(task.trials for task in result.tasks) == 12
    assert len(records_of(tmp_path)) == 12
    for task in result.tasks:
        assert 0 < task.best <= task.heuristic < 1
    assert [p.trials for p in seen] == sorted({p.trials for p in seen}) and seen[-1].trials == 12
    assert all(p.total == 12 and p.tasks == 2 and p.failed == 0 for p in seen)
    assert seen[-1].network_ms > 0 and seen[-1].remaining == 0 and str(tmp_path) in result.summary()

    compiled = tvm_edge.compile(model, "llvm", tuning_logs=tmp_path)
    info = compiled.report.records
    assert info is not None and (info.convolutions, info.tuned, info.ignored) == (3, 3, ())
    names = {name for k in compiled.report.kernels if k.origin == "tuned" for name in k.operators}
    assert {"first", "second", "third"} <= names
    assert relative_error(compiled.run(INPUTS)["y"], reference(model, INPUTS)["y"]) < 1e-4


CHILD = """
import sys
from pathlib import Path
import onnx
import tvm_edge
model, folder, trials, resume = sys.argv[1:]
result = tvm_edge.tune(model, "llvm", trials=int(trials), tuning_logs=Path(folder),
    resume=resume == "True", callbacks=[lambda p: print(p.trials, flush=True)])
print("done", result.trials, result.interrupted, flush=True)
"""


def start(path: Path, folder: Path, trials: int, resume: bool = False) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), str(folder), str(trials), str(resume)],
        env=child_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.full
def test_two_at_once_one_of_them_killed(model: onnx.ModelProto, tmp_path: Path) -> None:
    """They are the same run, too. The one that is killed resumes with all but its last batch."""
    path, folder = tmp_path / "model.onnx", tmp_path / "logs"
    onnx.save(model, path)
    killed, other = start(path, folder, 200), start(path, folder, 16)
    assert killed.stdout is not None
    said = int(killed.stdout.readline())
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    out, _ = other.communicate(timeout=120)
    assert other.returncode == 0 and "done 16 False" in out
    records = tried(folder)
    assert len(records) >= 16 and said == 8

    interrupted = start(path, folder, 200, resume=True)
    assert interrupted.stdout is not None
    assert int(interrupted.stdout.readline()) >= 16, "goes on behind a whole round"
    begun = monotonic()
    interrupted.send_signal(signal.SIGINT)
    out, _ = interrupted.communicate(timeout=30)
    assert monotonic() - begun < 10
    assert interrupted.returncode == 0 and out.splitlines()[-1].endswith("True")
    assert records <= tried(folder)


# ------------------------------------------------------------- the course of a run, by a stand-in


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    class Own(StandIn):
        tried: list[str] = []  # noqa: RUF012

    monkeypatch.setattr(measurer, "Pool", Own)
    return Own


def tune(model: Any, folder: Path, **options: Any) -> TuneResult:
    return tvm_edge.tune(model, "llvm", **{"tuning_logs": folder, **options})


def course(stand_in: type[StandIn], model: Any, folder: Path, **options: Any) -> list[str]:
    """Return the candidates that a run measures, in order."""
    before = len(stand_in.tried)
    tune(model, folder, **options)
    return stand_in.tried[before:]


def test_a_run_in_two_parts_is_the_run_in_one(
    stand_in: type[StandIn], model: onnx.ModelProto, tmp_path: Path
) -> None:
    one = course(stand_in, model, tmp_path / "one", trials=30)
    parts = course(stand_in, model, tmp_path / "two", trials=6)
    for total in (7, 19, 30):
        parts += course(stand_in, model, tmp_path / "two", trials=total, resume=True)
    assert len(one) == len(set(one)) == 30
    assert parts == one
    assert tried(tmp_path / "one") == tried(tmp_path / "two")
    result = tune(model, tmp_path / "two", trials=30, resume=True)
    assert result.trials == 0 and sum(task.trials for task in result.tasks) == 30


def test_fewer_trials_than_a_round_has_are_shared_out(
    stand_in: type[StandIn],
    model: onnx.ModelProto,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine of many cores, whose first round has several turns for each convolution."""
    monkeypatch.setattr(measurer, "_PER_WORKER", 32)
    one = course(stand_in, model, tmp_path / "one", trials=30)
    parts = course(stand_in, model, tmp_path / "two", trials=9)
    result = tune(model, tmp_path / "three", trials=9)
    assert sorted(task.trials for task in result.tasks) == [4, 5]
    assert all(0 < task.best <= task.heuristic < 1 for task in result.tasks)
    parts += course(stand_in, model, tmp_path / "two", trials=30, resume=True)
    assert parts == one and len(set(one)) == 30


def test_an_interrupted_run_keeps_what_it_has_and_goes_on(
    stand_in: type[StandIn], model: onnx.ModelProto, tmp_path: Path
) -> None:
    one = course(stand_in, model, tmp_path / "one", trials=30)
    stand_in.interrupt_after = len(one) + 13
    result = tune(model, tmp_path / "two", trials=30)
    assert result.interrupted and "resume=True" in result.summary()
    assert len(records_of(tmp_path / "two")) == 13
    stand_in.interrupt_after = 10**9
    rest = tune(model, tmp_path / "two", trials=30, resume=True)
    assert not rest.interrupted and rest.trials == 17
    assert stand_in.tried[len(one) :] == one


def test_damaged_and_foreign_lines_cost_themselves(
    stand_in: type[StandIn], model: onnx.ModelProto, tmp_path: Path
) -> None:
    """In a file as those that ship: its whole lines are what the run begins with."""
    cpu = resolve_target("llvm")
    (task, *_) = extract_tasks(model, cpu)
    good = measured(task.workload, task.configs[-1], cpu.spec, "llvm")
    foreign = json.dumps({**json.loads(good.to_json()), "schema": 99})
    path = store_of(tmp_path, cpu.spec.key, ".jsonl")
    path.parent.mkdir(parents=True)
    path.write_text(f"{good.to_json()[:-7]}\n{foreign}\n{good.to_json()}\n")
    with pytest.warns(tvm_edge.TvmEdgeWarning) as caught:
        result = tune(model, tmp_path, trials=8)
    words = "\n".join(str(warning.message) for warning in caught)
    assert f"{path}:1: not JSON" in words and f"{path}:2: a record of schema 99" in words
    assert result.trials == 8 and len(records_of(tmp_path)) == 8
    assert good.config_hash in {record.config_hash for record in records_of(tmp_path)}


def test_a_full_disk(stand_in: type[StandIn], model: onnx.ModelProto, tmp_path: Path) -> None:
    """Records committed before stay, and the run resumes when there is room again."""
    tune(model, tmp_path, trials=8)
    before = len(records_of(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(tvm_edge.RecordError, match=re.escape(str(tmp_path))):
            tune(model, tmp_path, level="exhaustive", resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(records_of(tmp_path)) >= before == 8
    assert tune(model, tmp_path, trials=40, resume=True).failed == 0
    assert len(records_of(tmp_path)) >= 40


def test_another_seed_or_model_does_not_resume(
    stand_in: type[StandIn], model: onnx.ModelProto, tmp_path: Path
) -> None:
    tune(model, tmp_path, trials=16)
    assert tune(model, tmp_path, trials=16, resume=True, seed=1).trials == 16
    assert tune(network(32), tmp_path, trials=16, resume=True).trials == 16
    assert tune(model, tmp_path, trials=16).trials == 16, "without resume"


def test_every_configuration_and_no_more(stand_in: type[StandIn], tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"]),
        helper.make_node("Conv", ["a", "w"], ["y"], strides=[2, 2]),
    ]
    weights = {"v": random_input((16, 16, 1, 1)), "w": random_input((16, 16, 3, 3))}
    small = make_model(nodes, {"x": (1, 16, 5, 5)}, ["y"], weights)
    sizes = [len(t.configs) for t in extract_tasks(small, resolve_target("llvm"))]
    assert len(sizes) == 2
    result = tune(small, tmp_path, level="exhaustive")
    assert [task.trials for task in result.tasks] == sizes
    assert len(stand_in.tried) == len(set(stand_in.tried)) == sum(sizes)
    assert tune(small, tmp_path, trials=10**6).trials == sum(sizes)


def test_levels_count_trials_of_each_convolution(
    stand_in: type[StandIn], model: onnx.ModelProto, tmp_path: Path
) -> None:
    assert tune(model, tmp_path, level="fast").trials == 20


def test_failures_are_counted_and_cost_only_themselves(
    stand_in: type[StandIn], model: onnx.ModelProto, tmp_path: Path
) -> None:
    stand_in.fails = ("winograd",)
    result = tune(model, tmp_path, trials=24)
    failed = [record for record in records_of(tmp_path) if record.error]
    assert result.failed == len(failed) > 0 and result.errors == {"WrongResult": len(failed)}
    assert all(r.error == "WrongResult" and r.config["algorithm"] == "winograd" for r in failed)
    assert all(task.config.algorithm == "direct" for task in result.tasks)


def test_where_nothing_runs_the_error_says_why(
    stand_in: type[StandIn], model: onnx.ModelProto, tmp_path: Path
) -> None:
    stand_in.fails = ("winograd", "direct")
    with pytest.raises(TuningError, match=r"WrongResult ×8; the last: as asked"):
        tune(model, tmp_path, trials=8)
    assert len(records_of(tmp_path)) == 8


def test_a_time_budget_ends_it_early(
    stand_in: type[StandIn], model: onnx.ModelProto, tmp_path: Path
) -> None:
    slow = [lambda _: sleep(0.3)]
    result = tune(model, tmp_path, level="exhaustive", time_budget=0.5, callbacks=slow)
    assert 8 <= result.trials <= 32 and not result.interrupted
    nothing = tune(model, tmp_path / "none", time_budget=1e-9)
    assert nothing.trials == 0 and not nothing.errors


def test_the_last_round_is_counted_to_a_time_budget(model: onnx.ModelProto) -> None:
    """Ten seconds: two tasks, of which the last round times four configurations each, twice."""
    tasks = extract_tasks(model, resolve_target("llvm"))
    search = Search([TaskSearch.of(task) for task in tasks])
    assert len(tasks) == 2
    assert [run._is_spent(10, at, search) for at in (0.0, 9.9, 10.1)] == [False, False, True]
    for own in search.tasks:
        own.measured = dict.fromkeys(range(16), 1.0)
    # Half of what has passed: sixteen trials of 32.
    assert [run._is_spent(10, at, search) for at in (6.6, 6.7)] == [False, True]
    for own in search.tasks:
        own.measured = {0: 1.0}
    # At most half of the budget.
    assert [run._is_spent(10, at, search) for at in (4.9, 5.1)] == [False, True]


def test_a_model_without_convolutions(stand_in: type[StandIn], tmp_path: Path) -> None:
    relu = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": (1, 4)}, ["y"])
    result = tune(relu, tmp_path)
    assert (result.tasks, result.trials, result.interrupted) == ((), 0, False)
    assert result.to_dict()["tasks"] == [] and "0 trials" in result.summary()


def test_the_result_names_the_file(
    stand_in: type[StandIn], model: onnx.ModelProto, tmp_path: Path
) -> None:
    onnx.save(model, tmp_path / "some.onnx")
    assert tune(tmp_path / "some.onnx", tmp_path, trials=1).model == str(tmp_path / "some.onnx")


def test_runs_are_no_records(
    stand_in: type[StandIn], model: onnx.ModelProto, tmp_path: Path
) -> None:
    """The record tools read whatever looks like a file of them in the folder."""
    tune(model, tmp_path, trials=8)
    assert stores_below(tmp_path) == [store_of(tmp_path, resolve_target("llvm").spec.key)]


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(
    stand_in: type[StandIn], model: onnx.ModelProto, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="file"):
        tune(model, tmp_path / "file" / "below", trials=8)
    path = store_of(tmp_path, resolve_target("llvm").spec.key)
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE cookies (name TEXT)")
    with pytest.raises(RecordError, match="of another program"):
        tune(model, tmp_path, trials=8)
    assert not stand_in.tried


def test_two_tuners_of_a_device_take_turns(
    stand_in: type[StandIn],
    model: onnx.ModelProto,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A round each: one has the device while it measures, and lets go of it between rounds."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other tests tune as well
    other = FileLock(DeviceLock(resolve_target("llvm").spec.key).path)
    free = []

    def is_free() -> bool:
        try:
            other.acquire(blocking=False)
        except Timeout:
            return False
        other.release()
        return True

    class Watching(stand_in):  # type: ignore[misc, valid-type]
        def _answer(self, trial: Trial) -> Done | Failed:
            free.append(is_free())
            answer: Done | Failed = super()._answer(trial)
            return answer

    monkeypatch.setattr(measurer, "Pool", Watching)
    between: list[bool] = []
    tune(model, tmp_path, trials=16, callbacks=[lambda _: between.append(is_free())])
    assert len(free) > 16 and not any(free)
    assert len(between) == 2 and all(between)


def test_seeds_of_any_size(stand_in: type[StandIn], model: onnx.ModelProto, tmp_path: Path) -> None:
    assert tune(model, tmp_path, trials=16, seed=2**40).trials == 16


def test_values_of_inputs_become_constants(
    stand_in: type[StandIn], model: onnx.ModelProto, tmp_path: Path
) -> None:
    """A model whose form depends on an input is tuned as it is compiled."""
    formed = onnx.ModelProto.FromString(model.SerializeToString())
    data = formed.graph.input[0]
    lengths = [dim.dim_value for dim in data.type.tensor_type.shape.dim]
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [len(lengths)])
    flat = helper.make_tensor_value_info("flat", TensorProto.FLOAT, [math.prod(lengths)])
    formed.graph.node.insert(0, helper.make_node("Reshape", ["flat", "shape"], [data.name]))
    del formed.graph.input[0]
    formed.graph.input.extend([flat, shape])
    found = tvm_edge.tune(
        formed, "llvm", trials=4, tuning_logs=tmp_path, input_values={"shape": lengths}
    )
    assert found.trials == 4
    with pytest.raises(tvm_edge.InputError, match="'shap', which is no input"):
        tvm_edge.tune(formed, "llvm", tuning_logs=tmp_path, input_values={"shap": lengths})


def test_pictures_are_prepared_in_the_tuned_model(stand_in: type[StandIn], tmp_path: Path) -> None:
    """The convolutions are those of the network's own size, whatever the camera's is."""
    taken, camera = pictures_network(), tvm_edge.Picture(size=(60, 80), resize="letterbox")
    prepared = {"preprocess": {"x": camera}}
    found = tvm_edge.tune(taken, "llvm", trials=6, tuning_logs=tmp_path, graph=True, **prepared)
    assert found.trials >= 6
    compiled = tvm_edge.compile(taken, "llvm", tuning_logs=tmp_path, **prepared)
    assert compiled.report.records is not None and compiled.report.records.tuned
    with pytest.raises(tvm_edge.InputError, match="'frame', which is no input"):
        tvm_edge.tune(taken, "llvm", tuning_logs=tmp_path, preprocess={"frame": camera})
