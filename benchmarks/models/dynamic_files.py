"""Files of the models with open dimensions: fetched, exported, opened or written."""

from __future__ import annotations

from pathlib import Path

from benchmarks.models.dynamic_cases import CASES, DynamicCase
from benchmarks.models.source_files import source_file

__all__ = ["model_path", "write_model"]


def model_path(name: str, folder: Path) -> Path:
    """Return the path of a case's file in the folder of all models."""
    return folder / f"dynamic.{name}.onnx"


def write_model(name: str, environment: Path, folder: Path) -> Path:
    """Write the file of a case where it is not there yet.

    Parameters
    ----------
    name : str
        Of the case.
    environment : Path
        Of the exporters, made where it is missing.
    folder : Path
        Of all models.

    Raises
    ------
    RuntimeError
        It cannot be fetched or exported.
    """
    case, path = CASES[name], model_path(name, folder)
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    kind, _, which = case.source.partition(" ")
    if kind == "zoo":
        _open_network(which, case, path)
    else:
        source_file(case.source, environment, folder).rename(path)
    return path


def _open_network(network: str, case: DynamicCase, path: Path) -> None:
    """Write a network of the zoo whose input has names in place of the lengths that are open."""
    import onnx

    from tvm_edge import zoo

    model = zoo.build(network)
    tensors = {value.name: value.type.tensor_type.shape for value in model.graph.input}
    for dim, given in zip(tensors[case.input].dim, case.dims, strict=True):
        if isinstance(given, str):
            dim.dim_param = given.partition("=")[0]
    for output in model.graph.output:
        output.type.tensor_type.shape.dim[0].dim_param = str(case.dims[0]).partition("=")[0]
    model.graph.ClearField("value_info")  # of the sizes that it had
    onnx.save(model, path)
