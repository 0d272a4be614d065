"""Feed damaged files to tvm-edge in a process of its own, since a failure may be a crash.

``python -m tests.fuzz.worker KIND FIRST COUNT`` prints one line per file: seed, and ``ok`` or the
error's type; anything but a ``TvmEdgeError`` ends the process with its traceback and the seed.
"""

from __future__ import annotations

import faulthandler
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
from onnx import helper

import tvm_edge
from tests.fuzz.mutations import mutate_bytes, mutate_model
from tests.onnx_models import conv_relu, make_model

SECONDS_PER_FILE = 60


def seed_models() -> list[object]:
    """Small valid models with different operators in them."""
    generator = np.random.default_rng(0)

    def values(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype("float32")

    tail = make_model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv", strides=[2, 2], group=2),
            helper.make_node("MaxPool", ["c"], ["p"], name="pool", kernel_shape=[2, 2]),
            helper.make_node("Transpose", ["p"], ["t"], name="transpose", perm=[0, 2, 3, 1]),
            helper.make_node("Reshape", ["t", "shape"], ["r"], name="reshape"),
            helper.make_node("Gemm", ["r", "k"], ["g"], name="gemm", transB=1),
            helper.make_node("Concat", ["g", "g"], ["d"], name="concat", axis=1),
            helper.make_node("Softmax", ["d"], ["y"], name="softmax", axis=-1),
        ],
        {"x": (1, 4, 10, 10)},
        ["y"],
        {"w": values(4, 2, 3, 3), "shape": np.asarray([1, -1]), "k": values(3, 36)},
    )
    return [conv_relu(), tail]


def feed_model(content: bytes) -> None:
    """Compile, and run once if it compiles to something of sensible size."""
    model = tvm_edge.compile(content, "llvm")
    if sum(np.prod(spec.static_shape) for spec in model.inputs) < 1e6:
        if model.report.memory.peak < 2**28 and model.report.flops < 1e9:
            model.run({s.name: np.ones(s.static_shape, s.dtype) for s in model.inputs})


def main(kind: str, first: int, count: int) -> None:
    """Feed `count` files of a kind, seeds from `first`."""
    warnings.simplefilter("ignore")
    models = seed_models()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tvme"
        if kind == "artifact":
            tvm_edge.compile(models[0], "llvm").export(path)
            artifact = path.read_bytes()
        for seed in range(first, first + count):
            faulthandler.dump_traceback_later(SECONDS_PER_FILE, exit=True)
            print(kind, seed, end=" ", flush=True)
            try:
                if kind == "artifact":
                    path.write_bytes(mutate_bytes(artifact, seed))
                    model = tvm_edge.load(path)
                    model.run({"data": np.ones((1, 3, 16, 16), "float32")})
                elif kind == "bytes":
                    base = models[seed % len(models)]
                    feed_model(mutate_bytes(base.SerializeToString(), seed))
                else:
                    feed_model(mutate_model(models[seed % len(models)], seed))
                print("ok", flush=True)
            except tvm_edge.TvmEdgeError as err:
                assert str(err)
                print(type(err).__name__, flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
