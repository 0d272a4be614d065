"""PyTorch models, by PyTorch's own exporter to ONNX; nothing here needs PyTorch until one comes."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tvm_edge.errors import InputError, InvalidModelError, UnsupportedOperatorError, one_line
from tvm_edge.extras import require

if TYPE_CHECKING:
    import onnx

__all__ = ["exported", "is_torch"]

_PROGRAM = ("torch.export.exported_program", "ExportedProgram")
_KINDS = frozenset({("torch.nn.modules.module", "Module"), _PROGRAM})


def is_torch(model: Any) -> bool:
    """Return whether a model is a ``torch.nn.Module`` or a ``torch.export.ExportedProgram``."""
    return any((kind.__module__, kind.__name__) in _KINDS for kind in type(model).__mro__)


def exported(model: Any, example_inputs: Any = None) -> onnx.ModelProto:
    """Export a PyTorch model to ONNX; a module is exported in evaluation mode.

    Parameters
    ----------
    model : torch.nn.Module or torch.export.ExportedProgram
    example_inputs : tuple, mapping or tensor, optional
        Arguments of a module's ``forward``: by position, by name, or the only one. Inputs have
        their shapes; for open dimensions give a program of ``torch.export.export(…,
        dynamic_shapes=…)``.

    Raises
    ------
    InputError
        A module without `example_inputs`, or a program with them.
    UnsupportedOperatorError, InvalidModelError
        PyTorch cannot export it.
    """
    is_program = _is_program(model)
    if is_program != (example_inputs is None):
        what = "a program has its inputs; leave example_inputs out"
        if not is_program:
            what = (
                "a torch.nn.Module does not say what it takes; give example_inputs=(tensor, …), or "
                "pass torch.export.export(module, (tensor, …))"
            )
        raise InputError(what, name="example_inputs")
    require("onnxscript", "onnx", "to export PyTorch models")
    torch = sys.modules["torch"]  # whose model this is
    named = isinstance(example_inputs, Mapping)
    args = () if is_program or named else example_inputs
    args = args if isinstance(args, tuple) else tuple(args) if isinstance(args, list) else (args,)
    kwargs = dict(example_inputs) if named else None
    try:
        with _evaluating(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with contextlib.redirect_stdout(io.StringIO()):
                program = torch.onnx.export(model, args, kwargs=kwargs, dynamo=True)
                proto: onnx.ModelProto = program.model_proto
    # It raises errors of torch.export, of the model's own forward, and of onnxscript.
    except Exception as err:
        cause = err.__cause__ or err
        message = (
            f"PyTorch cannot export the model ({type(cause).__name__}: {one_line(cause)}); see "
            "torch.onnx.export(model, inputs, dynamo=True, report=True)"
        )
        if "No ONNX function found" in str(cause) or "DispatchError" in type(cause).__name__:
            raise UnsupportedOperatorError(message) from err
        raise InvalidModelError(message) from err
    return proto


@contextlib.contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Export dropout and batch normalisation as in inference, and leave the module as it was."""
    modules = [] if _is_program(model) else [each for each in model.modules() if each.training]
    for each in modules:
        each.training = False
    try:
        yield
    finally:
        for each in modules:
            each.training = True


def _is_program(model: Any) -> bool:
    return (type(model).__module__, type(model).__name__) == _PROGRAM
