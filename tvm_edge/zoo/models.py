"""Build a network by name, write it to a file, and draw inputs for it."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tvm_edge.errors import InputError
from tvm_edge.extras import require
from tvm_edge.files import temporary_folder, writing
from tvm_edge.zoo import quantized, shapes, trained
from tvm_edge.zoo.catalogue import ZooEntry, entry, trained_names
from tvm_edge.zoo.pictures import pictures

if TYPE_CHECKING:
    import onnx

__all__ = ["build", "sample_input", "save"]

# Bytes of weights above which they go into a file of their own: protobuf ends at 2 GiB, and whoever
# parses a file below that still copies all of it.
_EXTERNAL_ABOVE = 500_000_000
_SAMPLE_SEED = 0x5A4D71


def build(
    name: str,
    *,
    image_size: int | tuple[int, int] | None = None,
    width: float = 1.0,
    batch: int = 1,
    seed: int = 0,
) -> onnx.ModelProto:
    """Build a network.

    Parameters
    ----------
    name : str
        One of :func:`tvm_edge.zoo.names`, :func:`tvm_edge.zoo.quantized_names` or
        :func:`tvm_edge.zoo.trained_names`; trained networks (:mod:`tvm_edge.zoo.trained`) are as
        they are and take no other argument.
    image_size : int or tuple[int, int], optional
        Height and width of the input, or one number for both, in pixels. By default the published
        size.
    width : float
        Multiplier of the channels of every hidden layer, rounded to a multiple of 8 (at least 8).
    batch : int
        Pictures in the input.
    seed : int
        Seed of the weights. Equal arguments give equal models, byte for byte, whatever BLAS NumPy
        uses.

    Returns
    -------
    onnx.ModelProto
        Opset 17; float32, or int8 between QuantizeLinear and DequantizeLinear
        (:mod:`tvm_edge.zoo.quantized`). Input ``data`` ``[batch, 3, height, width]``. A
        classifier's output is ``logits`` ``[batch, 1000]``; a detector's are documented with its
        function.

    Raises
    ------
    tvm_edge.errors.InputError
        If the zoo has no such network, or an argument is out of its range.
    tvm_edge.errors.MissingDependencyError
        If onnx is not installed, or for a network in int8 onnxruntime.
    """
    if name in quantized.quantized_names():
        return _in_int8(name, image_size=image_size, width=width, batch=batch, seed=seed)
    if name in trained_names():
        _as_it_is(name, image_size=image_size, width=width, batch=batch, seed=seed)
        require("onnx", "onnx", "to read a network of the zoo")
        return trained.load(name)
    e = entry(name)
    size = _image_size(image_size, e)
    batch, seed = _count("batch", batch, 1), _count("seed", seed, 0)
    if not (isinstance(width, Real) and 0 < width < math.inf):
        raise _wrong("width", "a number above 0", width)
    require("onnx", "onnx", "to build a network of the zoo")
    from tvm_edge.zoo.graph import Graph

    graph = Graph(name, size, batch=batch, width=float(width), seed=seed)
    family = importlib.import_module(f"tvm_edge.zoo.networks.{e.family}")
    getattr(family, name)(graph)
    return graph.model(f"{name} with calibrated random weights, seed {seed}. {e.source}.")


def _in_int8(
    name: str, *, image_size: int | tuple[int, int] | None, batch: int, **options: Any
) -> onnx.ModelProto:
    quantized.require_quantizer()
    network = quantized.float32_name(name)
    model = build(network, image_size=image_size, batch=batch, **options)
    drawn = (
        sample_input(network, seed, image_size=image_size, batch=batch)
        for seed in quantized.CALIBRATION
    )
    return quantized.quantize(model, drawn)


def save(
    name: str,
    path: str | os.PathLike[str],
    *,
    image_size: int | tuple[int, int] | None = None,
    width: float = 1.0,
    batch: int = 1,
    seed: int = 0,
) -> Path:
    """Build a network and write it as an ONNX file.

    Above 500 MB of weights they go beside it, to `path` with ``.data`` appended: ONNX's external
    data. A file that is there already is replaced, as a whole or not at all.

    Parameters
    ----------
    name, image_size, width, batch, seed
        As for :func:`build`.
    path : path
        The file to write, by custom ``*.onnx``, in a folder that exists.

    Returns
    -------
    pathlib.Path
        The file, ``Path(path)``.

    Raises
    ------
    tvm_edge.errors.InputError
        If :func:`build` refuses an argument, or the file cannot be written: no such folder, no
        permission, no space. Nothing is left behind.
    tvm_edge.errors.MissingDependencyError
        If onnx is not installed.
    """
    target = Path(path)
    advice = (
        "choose a file in a folder that exists, is writable and has space (nothing was left behind)"
    )
    with writing(target, "the network to", advice=advice):
        # The folder of what is written first: building a network needs a minute.
        with temporary_folder("network", target.parent) as folder:
            if target.is_dir():
                raise IsADirectoryError(0, "it is a folder")
            model = build(name, image_size=image_size, width=width, batch=batch, seed=seed)
            for part in _write(model, folder / target.name):
                part.replace(target.parent / part.name)
    return target


def _write(model: onnx.ModelProto, path: Path) -> list[Path]:
    """Write `model` to `path`; return the files, in the order in which they may be published."""
    import onnx

    if sum(len(t.raw_data) for t in model.graph.initializer) <= _EXTERNAL_ABOVE:
        onnx.save_model(model, path)
        return [path]
    data = path.with_name(f"{path.name}.data")
    onnx.save_model(model, path, save_as_external_data=True, location=data.name)
    return [data, path]


def sample_input(
    model: str | onnx.ModelProto,
    seed: int = 0,
    *,
    image_size: int | tuple[int, int] | None = None,
    batch: int = 1,
) -> dict[str, NDArray[np.float32]]:
    """Draw synthetic pictures for a network: for a trained one, of what it knows.

    Parameters
    ----------
    model : str or onnx.ModelProto
        A name of the zoo, or a model with one float32 input ``[N, 3, H, W]`` of known shape.
    seed : int
        Seed of the pictures. They are never the ones a network was calibrated on.
    image_size, batch
        As in :func:`build`, for a name; a model states its own.

    Returns
    -------
    dict[str, NDArray[np.float32]]
        Name of the input to pictures, about unit scale (:func:`tvm_edge.zoo.pictures.pictures`);
        for a trained network from 0 to 1 (:func:`tvm_edge.zoo.shapes.network_input`).

    Raises
    ------
    tvm_edge.errors.InputError
        If the zoo has no such network, an argument is out of its range, or the model's input is not
        a picture.
    """
    seed = _count("seed", seed, 0)
    if isinstance(model, str) and model in trained_names():
        _as_it_is(model, image_size=image_size, batch=batch)
        return {"image": shapes.network_input(shapes.draw(seed))}
    if isinstance(model, str):
        name, size = "data", _image_size(image_size, entry(model))
        batch = _count("batch", batch, 1)
    else:
        name, batch, size = _picture_input(model)
    return {name: pictures(batch, size, (_SAMPLE_SEED, seed))}


def _picture_input(model: onnx.ModelProto) -> tuple[str, int, tuple[int, int]]:
    """Name, batch and image size of the one input of `model`."""
    stored = {initializer.name for initializer in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in stored]
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in inputs}
    if len(inputs) == 1:
        ((name, shape),) = shapes.items()
        if len(shape) == 4 and shape[1] == 3 and min(shape) > 0:
            return name, shape[0], (shape[2], shape[3])
    raise _wrong("model", "one input [N, 3, H, W] of known shape", shapes)


def _as_it_is(name: str, **arguments: object) -> None:
    """Refuse what cannot be chosen of a trained network."""
    defaults = {"image_size": None, "width": 1.0, "batch": 1, "seed": 0}
    for argument, value in arguments.items():
        if value != defaults[argument]:
            allowed = f"left out: {name} is trained, for one picture of one size"
            raise _wrong(argument, allowed, value)


def _image_size(value: int | tuple[int, int] | None, e: ZooEntry) -> tuple[int, int]:
    if value is None:
        return e.image_size
    pair = (value, value) if isinstance(value, Integral) else value
    if not isinstance(pair, Sequence) or len(pair) != 2:
        raise _wrong("image_size", "an integer or (height, width)", value)
    height, width = (_count("image_size", v, e.min_image_size) for v in pair)
    return height, width


def _count(name: str, value: object, minimum: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
        raise _wrong(name, f"an integer of at least {minimum}", value)
    return int(value)


def _wrong(name: str, expected: str, got: object) -> InputError:
    return InputError(
        f"{name} must be {expected}, not {got!r}", name=name, expected=expected, got=repr(got)
    )
