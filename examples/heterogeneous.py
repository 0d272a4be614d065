"""One model on two devices: convolutions on the GPU, suppression of boxes on the CPU beside it.

    python examples/heterogeneous.py

``fallback=`` says what may leave the GPU. Left alone (``"auto"``) the compiler weighs it by what is
known of the devices; here one operator is named, as ICPP'19 (section 3.1.2) does it with a list.
"""

from __future__ import annotations

from collections import Counter

import tvm_edge
from tvm_edge import zoo
from tvm_edge.zoo import shapes

NETWORK = "zoo:shapes_ssd"


def main() -> None:
    if not any(device.target == "opencl" for device in tvm_edge.devices()):
        print("no OpenCL device on this machine; `tvm-edge doctor` says what is missing")
        return
    whole = tvm_edge.analyze(NETWORK, "opencl", fallback="none")  # says where, compiles nothing
    model = tvm_edge.compile(NETWORK, "opencl", fallback=["NonMaxSuppression"])
    print(f"all on the GPU:         {whole.placement_line()}")
    print(f"suppression on the CPU: {model.report.placement_line()}")

    print("\noperators by device")
    placed = [p for p in model.report.placements if p.device]  # the others are constants
    for device, count in Counter(p.device for p in placed).items():
        print(f"  {device:8} {count}")
    for placement in placed:
        if placement.device == "llvm":
            print(f"  {placement.operator}: {placement.reason}")
    print("\ntensors that cross")
    for copy in model.report.copies:
        how = "in shared memory" if copy["zero_copy"] else "copied"
        route = f"{copy['source']} to {copy['destination']}"
        print(f"  {copy['tensor']} {copy['dtype']} {copy['shape']}: {route}, {how}")

    outputs = model.run(zoo.sample_input("shapes_ssd"))
    found = Counter(shapes.CLASSES[i] for i in outputs["classes"][outputs["scores"] > 0.5])
    print("\nfound:", ", ".join(f"{count} {name}" for name, count in found.items()))


if __name__ == "__main__":
    main()
