"""Ctrl-C at random moments of five calls and five commands.

A call is interrupted in a process that goes on calling, and whose last call has to give what the
first gave; a command in a process of its own. Either ends in KeyboardInterrupt or with status 130,
or had finished. Prints a table and one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.machine import describe_machine
from benchmarks.common.options import Parser

_CALLS = ("compile", "analyze", "tune", "load", "export")
_COMMANDS: dict[str, tuple[str, ...]] = {
    "tvm-edge compile": ("compile", "{model}", "-o", "{folder}/out.tvme"),
    "tvm-edge analyze": ("analyze", "{model}"),
    "tvm-edge tune": ("tune", "{model}", "--trials", "4", "--tuning-records", "{folder}/records"),
    "tvm-edge run": ("run", "{artifact}"),
    "tvm-edge bench": ("bench", "{artifact}", "--repeat", "50"),
}
_LATE_SECONDS = 10.0
_PYTHON_STARTS = -signal.SIGINT
"""Status of a process that Ctrl-C ends before the command has begun; a shell calls it 130."""


def _model(folder: Path) -> Path:
    import onnx

    from tests.onnx_models import conv_relu

    path = folder / "small.onnx"
    onnx.save(conv_relu(), path)
    return path


def _calls(folder: Path, model: Path) -> dict[str, Callable[[], Any]]:
    import tvm_edge

    artifact, out = folder / "small.tvme", folder / "out.tvme"
    compiled = tvm_edge.compile(model, "llvm")
    compiled.export(artifact)
    loaded = tvm_edge.load(artifact)
    return {
        "compile": lambda: tvm_edge.compile(model, "llvm"),
        "analyze": lambda: tvm_edge.analyze(model, "llvm"),
        "tune": lambda: tvm_edge.tune(
            model, "llvm", trials=4, tuning_logs=folder / "records", resume=True
        ),
        "load": lambda: tvm_edge.load(artifact),
        "export": lambda: (compiled if random.random() < 0.5 else loaded).export(out),
    }


def call_again(name: str, folder: str) -> None:
    """Call until the standard input ends, and write what each call came to."""
    call = _calls(Path(folder), Path(folder) / "small.onnx")[name]
    call()
    started = time.monotonic()
    call()
    print(json.dumps({"seconds": time.monotonic() - started}), flush=True)
    while sys.stdin.readline() == "go\n":
        outcome, done = "lost", False
        result = None  # Python itself loses what comes while a finaliser runs
        try:
            print('{"began": true}', flush=True)
            result = call()
            done = True
            if getattr(result, "interrupted", False):
                outcome = "interrupted"
            else:
                time.sleep(_LATE_SECONDS)  # it is on its way
        except KeyboardInterrupt:
            outcome = "finished" if done else "interrupted"
        except BaseException as err:
            outcome = f"{type(err).__name__}: {err}"[:200]
        print(json.dumps({"outcome": outcome}), flush=True)
    _check(name, folder, call())


def _check(name: str, folder: str, result: Any) -> None:
    """See that the process still does what it did."""
    import numpy as np

    import tvm_edge

    image = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype("float32")
    expected = tvm_edge.load(Path(folder) / "small.tvme").run({"data": image})["pooled"]
    if name in ("compile", "load"):
        np.testing.assert_array_equal(result.run({"data": image})["pooled"], expected)
    if name == "export":
        found = tvm_edge.load(result).run({"data": image})["pooled"]
        np.testing.assert_array_equal(found, expected)
    print('{"sound": true}', flush=True)


def interrupt_calls(name: str, count: int, folder: Path, rng: random.Random) -> Counter[str]:
    """Interrupt one call so many times; returns what became of it."""
    code = "from benchmarks.runtime.interrupts import call_again; "
    code += f"call_again({name!r}, {str(folder)!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert process.stdin is not None and process.stdout is not None

    def said(key: str) -> Any:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{") and key in (found := json.loads(line)):
                return found[key]
        raise RuntimeError(f"the process that calls {name} ended with {process.wait()}")

    outcomes: Counter[str] = Counter()
    seconds = said("seconds")
    for _ in range(count):
        process.stdin.write("go\n")
        process.stdin.flush()
        said("began")
        time.sleep(rng.random() * seconds)
        process.send_signal(signal.SIGINT)
        outcomes[said("outcome")] += 1
    process.stdin.close()
    said("sound")
    if process.wait(60):
        outcomes[f"the process ended with {process.returncode}"] += 1
    return outcomes


def interrupt_command(
    name: str, count: int, folder: Path, rng: random.Random
) -> tuple[Counter[str], float]:
    """Interrupt a command so many times; returns what became of it, and its longest end."""
    words = [
        word.format(model=folder / "small.onnx", artifact=folder / "small.tvme", folder=folder)
        for word in _COMMANDS[name]
    ]
    command = [sys.executable, "-m", "tvm_edge", *words]
    options: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
        "env": {**os.environ, "TMPDIR": str(folder)},
    }
    seconds = float("inf")
    for _ in range(2):
        started = time.monotonic()
        subprocess.run(command, check=True, **{**options, "start_new_session": False})
        seconds = min(seconds, time.monotonic() - started)
    outcomes: Counter[str] = Counter()
    longest, tries = 0.0, 0
    while outcomes.total() < count and tries < 5 * count:
        tries += 1
        process = subprocess.Popen(command, **options)
        time.sleep(0.1 + rng.random() * seconds)
        if process.poll() is not None:  # too late to be an interrupt
            process.communicate()
            seconds *= 0.8
            continue
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        out, err = process.communicate(timeout=120)
        longest = max(longest, time.monotonic() - sent)
        if process.returncode in (130, _PYTHON_STARTS):
            outcomes["interrupted"] += 1
        elif process.returncode == 0 and out:
            outcomes["finished"] += 1
        else:
            outcomes[f"{process.returncode}: {err.strip().splitlines()[-1:]}"] += 1
    return outcomes, longest


def main(arguments: Sequence[str]) -> None:
    """Interrupt, and print what became of it."""
    parser = Parser("interrupts", __doc__)
    parser.add_argument("--calls", type=int, default=60, help="interrupts of each call (60)")
    parser.add_argument("--commands", type=int, default=20, help="of each command (20)")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    rng = random.Random(asked.seed)
    found: dict[str, dict[str, int]] = {}
    longest = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _calls(folder, _model(folder))
        for call in _CALLS if asked.calls else ():
            found[call] = dict(interrupt_calls(call, asked.calls, folder, rng))
            print(f"{call:20} {found[call]}", file=sys.stderr)
        for command in _COMMANDS:
            outcomes, waited = interrupt_command(command, asked.commands, folder, rng)
            found[command], longest = dict(outcomes), max(longest, waited)
            print(f"{command:20} {found[command]}", file=sys.stderr)
        left = sorted(path.name for path in folder.iterdir() if "tvm-edge-" in path.name)
    good = sum(each.get("interrupted", 0) + each.get("finished", 0) for each in found.values())
    total = sum(sum(each.values()) for each in found.values())
    result = {
        "machine": describe_machine(),
        "interrupts": total,
        "interrupted_or_finished": good,
        "outcomes": found,
        "longest_end_of_a_command_s": round(longest, 2),
        "left_in_the_temporary_folder": left,
    }
    print(json.dumps(result, indent=2))
