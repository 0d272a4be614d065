"""``tvm-edge compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvm_edge.cli import loading, options, printing

_OVER = 4
_SHOWN = 40


@click.command("compare")
@click.argument("model")
@click.option(
    "--inputs",
    "inputs_path",
    type=click.Path(path_type=Path),
    help="An .npz file with one array per input; default: seeded random values.",
)
@click.option(
    "--reference",
    default="onnxruntime",
    show_default=True,
    metavar="onnxruntime|TARGET",
    help="ONNX Runtime, or a target that the model is compiled for too, as llvm.",
)
@click.option(
    "--reference-precision",
    default="float32",
    show_default=True,
    help="Precision of a reference that is a target.",
)
@click.option(
    "--reference-fallback",
    default="auto",
    show_default=True,
    metavar="MODE",
    help="Fallback of a reference that is a target.",
)
@click.option(
    "--reference-parallel-fusion",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Parallel fusion of a reference that is a target.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="Largest difference relative to a tensor's largest value; default 1e-4, of tf32 1e-2, "
    "of mixed and float16 2e-2, of bfloat16 and quantised models 0.1.",
)
@click.option(
    "--bisect-passes",
    is_flag=True,
    help="Where there is an error, compile without one pass at a time, and say without which it "
    "is gone.",
)
@click.option(
    "--dump",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write the kernel that makes the error as an ONNX file, with its inputs.",
)
@click.option(
    "--print-top",
    type=click.IntRange(min=1),
    default=_SHOWN,
    show_default=True,
    help="Nodes to show, those furthest off.",
)
@click.option("--check", is_flag=True, help="Exit with 4 if an output is over the tolerance.")
@options.compilation_options
@options.precision_options
@options.rpc_options
@options.html_option
@options.json_option
def compare_command(
    model: str,
    inputs_path: Path | None,
    reference: str,
    reference_precision: str,
    reference_fallback: str,
    reference_parallel_fusion: str,
    tolerance: float | None,
    bisect_passes: bool,
    dump: Path | None,
    print_top: int,
    check: bool,
    html: Path | None,
    as_json: bool,
    target: Any,
    rpc_tracker: str | None,
    rpc_key: str | None,
    **compilation: Any,
) -> None:
    """Compare MODEL (an ONNX file or zoo:NAME), compiled, with a reference, node by node.

    What is compiled runs here, or on a board.

    Errors are relative to the largest value of a tensor. "alone" is that of a node by itself on the
    reference's inputs. A result inside of a kernel is nowhere in memory: its kernel's last node has
    the error.
    """
    from tvm_edge.workflow import compare

    beside = {
        "precision": reference_precision,
        "fallback": reference_fallback,
        "parallel_fusion": options.parallel_fusion_of(reference_parallel_fusion),
    }
    inputs = loading.read_arrays(inputs_path) if inputs_path else None
    with (
        loading.connected(rpc_tracker, rpc_key) as remote,
        printing.progress(f"comparing {model}"),
    ):
        found = compare(
            model,
            target,
            inputs=inputs,
            reference=reference,
            reference_options=beside,
            tolerance=tolerance,
            bisect_passes=bisect_passes,
            dump=dump,
            remote=remote,
            **compilation,
        )
    if html:
        found.to_html(html)
    printing.emit(as_json, found.to_dict(), found.text(print_top))
    if check and not found.within:
        raise SystemExit(_OVER)
