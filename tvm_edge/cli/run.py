"""``tvm-edge run``."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from tvm_edge.cli import loading, options, printing
from tvm_edge.files import whole_file, writing


@click.command("run")
@click.argument("model")
@click.option(
    "--inputs",
    "inputs_path",
    type=click.Path(path_type=Path),
    help="An .npz file with one array per input; default: seeded random values.",
)
@click.option(
    "--outputs",
    "outputs_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="An .npz file to write the outputs to.",
)
@click.option(
    "--print-top",
    type=click.IntRange(min=1),
    help="Print the indices and values of the N largest elements of each output.",
)
@options.opened_model_options
@options.json_option
def run_command(
    model: str,
    inputs_path: Path | None,
    outputs_path: Path | None,
    print_top: int | None,
    only: list[str] | None,
    as_json: bool,
    **opening: Any,
) -> None:
    """Run MODEL (an ONNX file, zoo:NAME, or an artifact) once, here or on a board."""
    from tvm_edge.runtime.inputs import random_inputs

    with loading.opened_model(model, **opening) as opened:
        values = loading.read_arrays(inputs_path) if inputs_path else random_inputs(opened.inputs)
        outputs = opened.run(values, models=only)
    if outputs_path:
        with writing(outputs_path):
            _write(outputs_path, outputs)
    rows = [_describe(name, array, print_top) for name, array in outputs.items()]
    lines = []
    for row in rows:
        lines.append(f"{row['name']}: {row['dtype']}{row['shape']}  mean {row['mean']:.6g}")
        lines += [f"  {item['index']}: {item['value']:.6g}" for item in row.get("top", ())]
    printing.emit(as_json, {"outputs": rows}, "\n".join(lines))


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays as numpy.savez does, under any name and at exactly `path`.

    numpy.savez itself reserves the name "file" for its own parameter.
    """
    with whole_file(path, streams=True) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _describe(name: str, array: np.ndarray, top: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "mean": float(array.mean()) if array.size else 0.0,
    }
    if top and array.size:
        # Descending, equal values in the order of their index; negation would wrap integers.
        order = array.size - 1 - np.argsort(array.ravel()[::-1], kind="stable")[::-1][:top]
        row["top"] = [
            {"index": [int(i) for i in np.unravel_index(flat, array.shape)], "value": v.item()}
            for flat, v in zip(order, array.ravel()[order], strict=True)
        ]
    return row
