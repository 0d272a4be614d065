"""Inputs to calibrate and to judge by: a folder of pictures, or an ``.npz`` file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_edge.errors import InputError, one_line
from tvm_edge.extras import require
from tvm_edge.files import read_npz
from tvm_edge.frontend.onnx_pictures import prepare_pictures
from tvm_edge.frontend.picture import Picture
from tvm_edge.workflow.references import runtime_session

if TYPE_CHECKING:
    import onnx

__all__ = ["PictureFile", "Sample", "Samples", "read_samples"]

_SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"))

Sample = dict[str, np.ndarray]
"""Inputs of one run, by name."""


@dataclass(frozen=True)
class PictureFile:
    """A picture that was read.

    Attributes
    ----------
    stem : str
        Of its file's name.
    picture : Picture
        With the file's own size.
    """

    stem: str
    picture: Picture


@dataclass(frozen=True)
class Samples:
    """Inputs of a model, one after the other.

    Attributes
    ----------
    inputs : list of Sample
    files : tuple of PictureFile
        Of a folder of pictures, for each sample.
    """

    inputs: list[Sample]
    files: tuple[PictureFile, ...] = ()


def read_samples(
    model: onnx.ModelProto, data: Any, picture: Picture | None, count: int | None
) -> Samples:
    """Read inputs of a model.

    Parameters
    ----------
    model : onnx.ModelProto
    data : path or sequence of mapping
        A folder of pictures, an ``.npz`` file with an array for each input (one sample after the
        other along the first axis), or the inputs themselves.
    picture : Picture, optional
        How the network wants pictures; their sizes are those of the files. Default: stretched to
        the network's size, red first, divided by 255.
    count : int, optional
        Samples to take at most.

    Raises
    ------
    InputError
        There are none, one cannot be read, or they are not the model's inputs.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    files: tuple[PictureFile, ...] = ()
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        samples = [{k: np.asarray(v) for k, v in each.items()} for each in data]
    elif Path(data).is_dir():
        samples, files = _from_folder(model, inputs, Path(data), picture, count)
    else:
        samples = _from_arrays(Path(data), [value.name for value in inputs])
    if not samples:
        raise InputError(f"there are no samples in {data!r}; give at least one", name="data")
    names = {value.name for value in inputs}
    for sample in samples:
        if set(sample) != names:
            raise InputError(
                f"a sample has {', '.join(sorted(sample)) or 'no arrays'}, and the model takes "
                f"{', '.join(sorted(names))}; name the arrays as the inputs",
                name="data",
                expected=", ".join(sorted(names)),
                got=", ".join(sorted(sample)),
            )
    return Samples(samples[:count], files[:count])


def _from_arrays(path: Path, names: Sequence[str]) -> list[Sample]:
    arrays = read_npz(
        path,
        "samples",
        name="data",
        advice="give a folder of pictures, or an .npz file that numpy.savez(path, **inputs) wrote",
    )
    lengths = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(lengths) != 1 or set(arrays) != set(names):
        raise InputError(
            f"{str(path)!r} has {', '.join(f'{n} {a.shape}' for n, a in arrays.items())}; give an "
            f"array for each of {', '.join(names)}, as many samples in each along the first axis",
            name="data",
            got=str(path),
        )
    (length,) = lengths
    return [{n: a[i : i + 1] for n, a in arrays.items()} for i in range(length)]


def _from_folder(
    model: onnx.ModelProto,
    inputs: Sequence[onnx.ValueInfoProto],
    folder: Path,
    picture: Picture | None,
    count: int | None,
) -> tuple[list[Sample], tuple[PictureFile, ...]]:
    paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in _SUFFIXES)[:count]
    if not paths:
        raise InputError(
            f"there are no pictures in {str(folder)!r} ({', '.join(sorted(_SUFFIXES))}); name "
            "another folder",
            name="data",
            got=str(folder),
        )
    if len(inputs) != 1:
        raise InputError(
            f"the model has {len(inputs)} inputs, and pictures are one; give an .npz file with "
            f"{', '.join(value.name for value in inputs)}",
            name="data",
        )
    image = require("PIL.Image", "demo", "to read pictures")
    how = picture or Picture(resize="bilinear", std=255.0)
    prepared: dict[tuple[int, int], Any] = {}
    samples, files = [], []
    for path in paths:
        try:
            with image.open(path) as file:
                pixels = np.asarray(file.convert("RGB"))
        except OSError as err:
            raise InputError(
                f"cannot read the picture {str(path)!r}: {one_line(err)}; remove or replace it",
                name="data",
                got=str(path),
            ) from err
        size = pixels.shape[0], pixels.shape[1]
        if size not in prepared:
            prepared[size] = runtime_session(_preparation(model, inputs[0], how, size))
        # Files are red first, whatever the camera will be.
        data = pixels[..., ::-1] if how.color == "BGR→RGB" or how.color == "BGR" else pixels
        name = inputs[0].name
        samples.append({name: prepared[size].run(None, {name: data[None]})[0]})
        files.append(PictureFile(path.stem, replace(how, size=size)))
    return samples, tuple(files)


def _preparation(
    model: onnx.ModelProto, value: onnx.ValueInfoProto, picture: Picture, size: tuple[int, int]
) -> onnx.ModelProto:
    """A model that prepares pictures of one size, and does nothing else."""
    import onnx

    whole = onnx.ModelProto()
    whole.ir_version = model.ir_version
    whole.opset_import.extend(o for o in model.opset_import if o.domain in ("", "ai.onnx"))
    graph = whole.graph
    graph.name = "prepare"
    graph.input.append(value)
    dims = graph.input[0].type.tensor_type.shape.dim
    if dims and not dims[0].HasField("dim_value"):
        dims[0].dim_value = 1
    graph.node.append(onnx.helper.make_node("Identity", [value.name], ["ready"], name="ready"))
    kind = value.type.tensor_type.elem_type
    graph.output.append(onnx.helper.make_tensor_value_info("ready", kind, None))
    own = replace(picture, size=size, layout="NHWC", dtype="uint8")
    prepare_pictures(whole, {value.name: own})
    return whole
