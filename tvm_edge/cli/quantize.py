"""``tvm-edge quantize``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvm_edge.cli import options, printing


@click.command("quantize")
@click.argument("model")
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    help="A folder of pictures, or an .npz file with an array of samples for each input.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Model to write; default MODEL with .int8.onnx, in this folder.",
)
@options.preprocess_option
@click.option(
    "--labels",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A text file for each picture, with a line CLASS X Y WIDTH HEIGHT for each object, in "
    "fractions of the picture: the drop is what a detector's mAP loses.",
)
@click.option(
    "--boxes",
    type=click.Choice(["xyxy", "yxyx", "cxcywh"]),
    default="xyxy",
    show_default=True,
    help="Form of the boxes that the detector returns.",
)
@click.option(
    "--relative-boxes",
    is_flag=True,
    help="Those boxes are fractions of the network's input, and not pixels.",
)
@click.option(
    "--method",
    type=click.Choice(["minmax", "entropy", "percentile"]),
    default="minmax",
    show_default=True,
    help="Range of activations: least and largest values, or most of their distribution.",
)
@click.option("--samples", type=click.IntRange(min=1), help="Samples to take at most.")
@click.option(
    "--exclude",
    multiple=True,
    metavar="NODE|auto",
    help="A node that stays float32, repeatable; auto: those that lose most, until the drop is at "
    "most --max-drop.",
)
@click.option(
    "--max-drop",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="What a detector's mAP may lose with --labels; else the share of samples whose class may "
    "change; without classes, error of the outputs.",
)
@options.json_option
def quantize_command(
    model: str,
    data: Path,
    output: Path | None,
    preprocess: dict[str, Any] | None,
    labels: Path | None,
    boxes: str,
    relative_boxes: bool,
    method: str,
    samples: int | None,
    exclude: tuple[str, ...],
    max_drop: float,
    as_json: bool,
) -> None:
    """Quantise MODEL (an ONNX file or zoo:NAME) to int8 with ONNX Runtime's tool."""
    from tvm_edge.workflow import BoxLabels, quantize

    if preprocess is not None and len(preprocess) > 1:
        raise click.UsageError("Pictures are one input; give --preprocess once.")
    path = output or Path(f"{Path(model.removeprefix('zoo:')).stem}.int8.onnx")
    with printing.progress(f"quantising {model}"):
        found = quantize(
            model,
            data,
            picture=next(iter((preprocess or {}).values()), None),
            labels=BoxLabels(labels, boxes, relative_boxes) if labels else None,
            method=method,
            count=samples,
            exclude="auto" if exclude == ("auto",) else exclude,
            max_drop=max_drop,
        )
    written = found.save(path)
    result = {"model": str(written), **found.to_dict()}
    printing.emit(as_json, result, f"{found.text()}\n\nwrote {written}")
