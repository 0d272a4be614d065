"""From a path, bytes, a ModelProto, a Relax module or a zoo name to one normal form."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm

from tvm_edge.errors import InvalidModelError
from tvm_edge.frontend.normal_form import ImportedModel, SourceNode

__all__ = ["ImportedModel", "SourceNode", "load_model"]


def load_model(
    model: Any, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> ImportedModel:
    """Read `model` and bring it to the normal form.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto, tvm.IRModule or str ``"zoo:NAME"``
    input_shapes : mapping of str to sequence of int, optional
        Shapes of inputs with dynamic dimensions.

    Raises
    ------
    InvalidModelError
        Not a model, or a damaged one.
    InputError
        Dynamic dimensions that `input_shapes` does not fix, or shapes that do not fit.
    UnsupportedOperatorError
        Operators without an implementation, each named with its nodes.
    """
    shapes = {name: tuple(shape) for name, shape in (input_shapes or {}).items()}
    if isinstance(model, tvm.IRModule):
        from tvm_edge.frontend.relax_import import import_relax

        return import_relax(model, shapes, "relax")
    from tvm_edge.frontend.onnx_import import import_onnx
    from tvm_edge.frontend.onnx_source import read_proto

    name = "model"
    if isinstance(model, str) and model.startswith("zoo:"):
        from tvm_edge import zoo

        name = model.removeprefix("zoo:")
        model = zoo.build(name)
    elif isinstance(model, (str, os.PathLike)):
        name = Path(model).stem
    elif isinstance(model, (bytes, bytearray, memoryview)):
        model = bytes(model)
    elif type(model).__name__ == "ModelProto":
        name = model.graph.name or name
    else:
        raise InvalidModelError(
            f"cannot read a model from a {type(model).__name__}; pass a path, bytes, an "
            "onnx.ModelProto, a tvm.IRModule, or 'zoo:NAME'"
        )
    return import_onnx(read_proto(model), shapes, name)
