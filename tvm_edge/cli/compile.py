"""``tvm-edge compile``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvm_edge.cli import options, printing


@click.command("compile")
@click.argument("model", required=False)
@options.several_models_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Artifact to write; default MODEL with .tvme, in this folder; of several, their names.",
)
@options.compilation_options
@options.precision_options
@click.option(
    "--embed-programs",
    is_flag=True,
    help="Add OpenCL kernels as this machine's driver builds them.",
)
@options.html_option
@options.json_option
def compile_command(
    model: str | None,
    models: dict[str, str],
    output: Path | None,
    embed_programs: bool,
    html: Path | None,
    as_json: bool,
    **compilation: Any,
) -> None:
    """Compile MODEL (an ONNX file or zoo:NAME) to an artifact, or several models to one."""
    import tvm_edge

    chosen = options.chosen_models(model, models)
    named = "-".join(models) if model is None else Path(model.removeprefix("zoo:")).stem
    path = output or Path(f"{named}.tvme")
    with printing.compiling(named) as progress:
        compiled = tvm_edge.compile(
            chosen,
            progress=progress,
            **compilation,
        )
    with printing.progress(f"writing {path}"):
        compiled.export(path, embed_programs=embed_programs)
    report = compiled.report
    if html:
        report.to_html(html)
    size = path.stat().st_size
    records = report.records
    # Where there are none for this device, the report says so, and this need not.
    covered = ""
    if records is not None and (records.covered or records.ignored):
        covered = f"records: {records.line()}\n"
    precise = f"{report.precision.line()}\n" if report.precision else ""
    memory = report.memory
    planned = ""
    if memory is not None and memory.budget is not None:
        planned = f"memory: {memory.plan_line()}\n"
    fused = f"fusion: {report.fusion_line()}\n" if report.fusion_groups else ""
    decided = f"{report.placement_line()}\n{covered}{precise}{fused}{planned}"
    printing.emit(
        as_json,
        {"artifact": str(path), "bytes": size, "report": report.to_dict()},
        f"{decided}wrote {path} ({size / 2**20:.1f} MiB)",
    )
