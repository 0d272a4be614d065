"""Frontends: a path, bytes, a ModelProto, a Relax module or a zoo name to one normal form."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.relax.utils import copy_with_new_vars

from tvm_edge.errors import InputError, InvalidModelError, UnsupportedOperatorError
from tvm_edge.extras import require
from tvm_edge.frontend.given_inputs import GivenInputs, GivenLength
from tvm_edge.frontend.normal_form import ImportedModel, NodeCost, SourceNode, Survey
from tvm_edge.frontend.picture import Picture
from tvm_edge.frontend.several_models import (
    beside,
    by_model,
    check_models,
    named_in_errors,
    surveyed_beside,
)
from tvm_edge.frontend.torch_export import exported, is_torch

__all__ = [
    "GivenInputs",
    "GivenLength",
    "ImportedModel",
    "NodeCost",
    "Picture",
    "SourceNode",
    "Survey",
    "load_model",
    "read_model",
    "survey_model",
]


def load_model(
    model: Any,
    input_shapes: Mapping[str, Sequence[GivenLength]] | None = None,
    input_values: Mapping[str, Any] | None = None,
    preprocess: Mapping[str, Picture] | None = None,
    example_inputs: Any = None,
) -> ImportedModel:
    """Read `model` and bring it to the normal form.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto, tvm.IRModule, PyTorch model, str ``"zoo:NAME"``, or dict
        A dict has several of the others by name, which are brought side by side
        (:mod:`tvm_edge.frontend.several_models`).
    input_shapes : mapping of str to sequence of GivenLength, optional
        Shapes of inputs with dynamic dimensions; those left out stay open.
    input_values : mapping of str to array_like, optional
        Values of inputs of ONNX models that are constants from here on.
    preprocess : mapping of str to Picture, optional
        Inputs of ONNX models that are pictures, prepared in the model.
    example_inputs : tuple, mapping or tensor, optional
        Of a ``torch.nn.Module``.

    Raises
    ------
    InvalidModelError
        Not a model, or a damaged one.
    InputError
        Shapes that do not fit, or names of several models that mean nothing.
    UnsupportedOperatorError
        Operators without an implementation, each named with its nodes.
    """
    given = GivenInputs.of(input_shapes, input_values, preprocess)
    if example_inputs is not None:
        if not is_torch(model):
            raise InputError(
                f"example_inputs are of a torch.nn.Module, and the model is a "
                f"{type(model).__name__}; leave them out",
                name="example_inputs",
            )
        model = exported(model, example_inputs)
    if isinstance(model, Mapping):
        return _load_several(model, given)
    if isinstance(model, tvm.IRModule):
        from tvm_edge.frontend.relax_import import import_relax

        if given.values:
            raise InputError(
                "input_values are of ONNX models; bind parameters of a Relax module with "
                "relax.transform.BindParams",
                name="input_values",
            )
        if given.pictures:
            raise InputError(
                "preprocess is of ONNX models; write the operators into the Relax module",
                name="preprocess",
            )
        return import_relax(model, given.shapes)
    require("onnx", "onnx", "to read ONNX models")  # before TVM's importer misses it
    from tvm_edge.frontend.onnx_import import import_onnx

    source, name = _source(model)
    return import_onnx(_read(source), given, name)


def _load_several(models: Mapping[str, Any], given: GivenInputs) -> ImportedModel:
    check_models(models)
    shapes = by_model("input_shapes", models, given.shapes)
    values = by_model("input_values", models, given.values)
    pictures = by_model("preprocess", models, given.pictures)
    imported = {}
    for name, model in models.items():
        with named_in_errors(name):
            if isinstance(model, Mapping):
                raise _no_model(model)
            imported[name] = load_model(model, shapes[name], values[name], pictures[name])
        if isinstance(model, tvm.IRModule):
            # It may be there more than once, and no variable may be bound twice.
            own = imported[name]
            imported[name] = replace(own, module=_copied(own.module))
    return beside(imported)


def _copied(module: tvm.IRModule) -> tvm.IRModule:
    functions = {
        gvar: copy_with_new_vars(func) if isinstance(func, relax.Function) else func
        for gvar, func in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def survey_model(
    model: Any,
    given: GivenInputs,
    error: UnsupportedOperatorError,
) -> Survey:
    """List the contents of a model that :func:`load_model` refused with `error`.

    Raises
    ------
    UnsupportedOperatorError
        `error`, if it is about no operator of an ONNX model.
    InvalidModelError, InputError
        As :func:`load_model`.
    """
    if isinstance(model, Mapping):
        return _survey_several(model, given)
    if isinstance(model, tvm.IRModule):
        raise error
    from tvm_edge.frontend.onnx_survey import survey_onnx

    source, name = _source(model)
    return survey_onnx(_read(source), given, name, error)


def _survey_several(models: Mapping[str, Any], given: GivenInputs) -> Survey:
    shapes = by_model("input_shapes", models, given.shapes)
    values = by_model("input_values", models, given.values)
    pictures = by_model("preprocess", models, given.pictures)
    found: dict[str, ImportedModel | Survey] = {}
    for name, model in models.items():
        with named_in_errors(name):
            try:
                found[name] = load_model(model, shapes[name], values[name], pictures[name])
            except UnsupportedOperatorError as err:
                own = GivenInputs(shapes[name], values[name], pictures[name])
                found[name] = survey_model(model, own, err)
    return surveyed_beside(found)


def read_model(model: Any) -> Any:
    """Parse what :func:`load_model` takes, a Relax module excepted: an ``onnx.ModelProto``.

    Raises
    ------
    InvalidModelError, InputError
    """
    return _read(_source(model)[0])


def _source(model: Any) -> tuple[Any, str]:
    """Return the source of an ONNX model, and its name.

    Raises
    ------
    InvalidModelError
    """
    name = "model"
    if isinstance(model, str) and model.startswith("zoo:"):
        name = model.removeprefix("zoo:")
    elif isinstance(model, (str, os.PathLike)):
        name = Path(model).stem
    elif isinstance(model, (bytes, bytearray, memoryview)):
        model = bytes(model)
    elif is_torch(model):
        model = exported(model)
    elif type(model).__name__ == "ModelProto":
        name = model.graph.name or name
    else:
        raise _no_model(model)
    return model, name


def _no_model(model: Any) -> InvalidModelError:
    return InvalidModelError(
        f"cannot read a model from a {type(model).__name__}; pass a path, bytes, an "
        "onnx.ModelProto, a tvm.IRModule, a PyTorch model, 'zoo:NAME', or a dict of names to any "
        "of these"
    )


def _read(source: Any) -> Any:
    """Read an ``onnx.ModelProto`` that is the caller's alone, to change and to drop."""
    from tvm_edge.frontend.onnx_source import read_proto

    if isinstance(source, str) and source.startswith("zoo:"):
        from tvm_edge import zoo

        return read_proto(zoo.build(source.removeprefix("zoo:")), copy=False)
    return read_proto(source)
