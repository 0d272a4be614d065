"""Compile an ONNX file, run it on a picture, and look at what the compiler decided.

    python examples/compile_and_run.py [model.onnx] [--target opencl]

Without a file it takes the detector that comes with tvm-edge.
"""

from __future__ import annotations

import argparse

import numpy as np

import tvm_edge
from tvm_edge import zoo
from tvm_edge.zoo import shapes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="zoo:shapes_ssd")
    parser.add_argument("--target", default="llvm", help="llvm, opencl, cuda, or a preset")
    options = parser.parse_args()

    model = tvm_edge.compile(options.model, options.target)
    for tensor in model.inputs:
        print(f"input  {tensor.name} {tensor.dtype} {tensor.shape}")
    for tensor in model.outputs:
        print(f"output {tensor.name} {tensor.dtype} {tensor.shape}")

    if options.model == "zoo:shapes_ssd":
        outputs = model.run(zoo.sample_input("shapes_ssd"))
        print_detections(outputs)
    else:  # pictures of your own go here; random numbers show that it runs
        rng = np.random.default_rng(0)
        feeds = {t.name: rng.random(t.shape).astype(t.dtype) for t in model.inputs}
        for name, value in model.run(feeds).items():
            print(f"{name}: {value.dtype} {value.shape}")

    print(model.report.summary())  # where each operator runs, kernels, memory
    print(model.profile().table(5))  # the five slowest kernels


def print_detections(outputs: dict[str, np.ndarray]) -> None:
    """The objects found, the best first."""
    for i in np.argsort(-outputs["scores"], kind="stable"):
        if outputs["scores"][i] >= 0.5:
            y1, x1, y2, x2 = outputs["boxes"][i] * shapes.SIZE
            name = shapes.CLASSES[outputs["classes"][i]]
            score = outputs["scores"][i]
            print(f"{name:8} {score:.2f}  from ({x1:.0f}, {y1:.0f}) to ({x2:.0f}, {y2:.0f}) pixels")


if __name__ == "__main__":
    main()
