"""Networks that were trained, and ship as files: unlike the others they recognise something.

``shapes_ssd`` finds the shapes of :mod:`tvm_edge.zoo.shapes` in pictures of 128x128: a MobileNetV1
of half its depth, SSD's predictors over three of its maps, softmax, decoding and suppression.
``examples/train`` in the repository has trained it; its metadata states its mAP.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tvm_edge.errors import InputError
from tvm_edge.zoo.catalogue import trained_names

if TYPE_CHECKING:
    import onnx

__all__ = ["load", "model_path"]


def model_path(name: str) -> Path:
    """Return the ONNX file of a trained network.

    Parameters
    ----------
    name : str
        One of :func:`tvm_edge.zoo.trained_names`.

    Returns
    -------
    pathlib.Path
        A file of the installed package; copy it to change it.

    Raises
    ------
    tvm_edge.errors.InputError
        If no trained network is called so.
    """
    if name not in trained_names():
        known = ", ".join(trained_names())
        raise InputError(
            f"no trained network is called {name!r}; there is {known}",
            name="name",
            expected=known,
            got=repr(name),
        )
    return Path(__file__).with_name("data") / f"{name}.onnx"


def load(name: str) -> onnx.ModelProto:
    """Read a trained network; ``shapes_ssd``:

    - ``image`` float32 ``[1, 3, 128, 128]``: red, green, blue from 0 to 1;
    - ``boxes`` ``[n, 4]``: y1, x1, y2, x2 as fractions of the picture, not clipped to it;
    - ``scores`` ``[n]`` above 0.05 and ``classes`` int64 ``[n]``, indices into
      :data:`tvm_edge.zoo.shapes.CLASSES`: by class, and the best first in each.

    Its ``metadata_props`` have the names of the classes, the mAP at IoU 0.5 on 500 held-out
    pictures, and the seed and version of its training.
    """
    import onnx

    return onnx.load(model_path(name))
