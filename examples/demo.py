"""Detect objects in a picture: compile, run, and say where everything ran and how fast.

``make demo`` runs this. The network is SSD-MobileNet from the built-in zoo, whose weights are
calibrated random numbers: the boxes are arithmetic, not objects.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import tvm_edge
from tvm_edge import zoo

NETWORK = "ssd_mobilenet_v1"


def main() -> None:
    picture = zoo.sample_input(NETWORK)
    print(f"compiling {NETWORK} for this CPU …")
    model = tvm_edge.compile(f"zoo:{NETWORK}", "llvm")
    print(model.report.summary())

    outputs = model.run(picture)
    scores = outputs["detection_scores"]
    print(f"{len(scores)} detections; the five best:")
    for i in np.argsort(-scores, kind="stable")[:5]:
        y1, x1, y2, x2 = outputs["detection_boxes"][i]
        print(
            f"  class {outputs['detection_classes'][i]:3d}  score {scores[i]:.3f}  "
            f"box ({x1:.2f}, {y1:.2f}) to ({x2:.2f}, {y2:.2f})"
        )

    with tempfile.TemporaryDirectory() as folder:
        artifact = model.export(Path(folder) / "ssd.tvme")
        size = artifact.stat().st_size / 2**20
        again = tvm_edge.load(artifact)
        same = all(np.array_equal(again.run(picture)[name], outputs[name]) for name in outputs)
        print(f"exported {size:.1f} MiB; loaded again, outputs {'equal' if same else 'DIFFER'}")
    print(f"latency: {model.benchmark(picture)}")
    if not same:
        raise SystemExit("the artifact computes something else than the compiled model")


if __name__ == "__main__":
    main()
