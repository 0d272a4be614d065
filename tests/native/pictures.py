"""A picture for the examples in C++, as a file and as the model takes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tvm_edge import zoo

__all__ = ["picture_of"]


def picture_of(path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Write an input of ``shapes_ssd`` as PPM; the file, and the same rounded to its bytes."""
    image = next(iter(zoo.sample_input("shapes_ssd").values()))
    pixels = (np.clip(image[0], 0, 1) * 255).round().astype("uint8").transpose(1, 2, 0)
    path.write_bytes(b"P6\n%d %d\n255\n" % pixels.shape[1::-1] + pixels.tobytes())
    values = (pixels.transpose(2, 0, 1)[None] / np.float32(255)).astype("float32")
    return path, {"image": values}
