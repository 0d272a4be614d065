"""Where memory ends, at whatever moment, the error is MemoryError or one of ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvm_edge
from tests.cli.conftest import Invoke, invoke  # noqa: F401 - a fixture
from tests.marks import in_full
from tests.onnx_models import make_model
from tests.runtime.support import run_python

LIMITED = """
import mmap, resource, sys
from pathlib import Path
import numpy as np
import tvm_edge
from tests.onnx_models import conv_relu

artifact, folder, what = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
model = tvm_edge.load(artifact, copy=True)
small = tvm_edge.load(artifact)
values = {"data": np.zeros((1, 1 << 20), "float32")}
small.run(values), small.run_async(values).result()
calls = {
    "load": lambda: tvm_edge.load(artifact),
    "copy": lambda: tvm_edge.load(artifact, copy=True),
    "export": lambda: model.export(folder / "again.tvme"),
    "compile": lambda: tvm_edge.compile(conv_relu(), "llvm"),
    "input": lambda: small.run({"data": np.broadcast_to(np.float32(0), (1, 1 << 20))}),
    "queue": lambda: [small.run_async(values) for _ in range(8)][-1].result(),
}
calls[what]()  # what is imported at the first use is


def status(name):
    (line,) = (line for line in open("/proc/self/status") if line.startswith(name))
    return int(line.split()[1])


while what == "compile" and status("VmSize") > status("VmPeak") - (400 << 10):
    pass  # the compiler's stack is still there
now = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
said = []
for extra in (0, 1, 2, 3, 5, 8, 20, 100):
    resource.setrlimit(resource.RLIMIT_AS, (now + (extra << 20), resource.RLIM_INFINITY))
    try:
        calls[what]()
        said.append("done")
    except (MemoryError, tvm_edge.TvmEdgeError) as err:
        said.append(type(err).__name__)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
calls[what]()
print(*said)
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with 4 MiB of input and of weights."""
    from onnx import helper

    model = make_model(
        [helper.make_node("Add", ["data", "weight"], ["sum"])],
        {"data": (1, 1 << 20)},
        ["sum"],
        {"weight": np.ones((1, 1 << 20), "float32")},
    )
    path = tmp_path_factory.mktemp("wide") / "wide.tvme"
    return tvm_edge.compile(model, "llvm", num_threads=1).export(path)


# A load without a copy is part of the one with; a queue of runs copies inputs, too.
@pytest.mark.parametrize("what", ["copy", "export", "compile", "queue", *in_full("load", "input")])
def test_a_limit_on_address_space(wide: Path, tmp_path: Path, what: str) -> None:
    """The process goes on, and does the same without the limit."""
    said = run_python(LIMITED, wide, tmp_path, what).split()[-8:]
    assert set(said) <= {"done", "MemoryError", "ArtifactError", "InputError"}, said
    if what in ("copy", "compile"):
        assert said[0] != "done"


def test_the_command_says_out_of_memory(
    invoke: Invoke,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        np.empty(1 << 60, "uint8")

    monkeypatch.setattr("tvm_edge.load", fail)
    outcome = invoke("bench", "model.tvme")
    assert outcome.code == 4 and "out of memory" in outcome.err and "Unable" in outcome.err
