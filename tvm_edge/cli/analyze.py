"""``tvm-edge analyze``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvm_edge.cli import options, printing


@click.command("analyze")
@click.argument("model", required=False)
@options.several_models_option
@options.compilation_options
@click.option("--operators", is_flag=True, help="List every operator, not just the types.")
@click.option("--memory", is_flag=True, help="Where the memory is: by device, and by layer.")
@options.html_option
@options.json_option
def analyze_command(
    model: str | None,
    models: dict[str, str],
    operators: bool,
    memory: bool,
    html: Path | None,
    as_json: bool,
    **compilation: Any,
) -> None:
    """Say what MODEL, or several, take and where each of their operators would run.

    Operators, FLOPs and their distribution, bytes, weights, kernels and memory. Operators without
    an implementation are listed; that is an answer, and the exit status is 0. With --memory, the
    layers that take the most of it.
    """
    import tvm_edge
    from tvm_edge.report.text import analysis, memory_tables

    chosen = options.chosen_models(model, models)
    named = model or ", ".join(models)
    with printing.progress(f"analyzing {named}"):
        report = tvm_edge.analyze(chosen, **compilation)
    if html:
        report.to_html(html)
    text = memory_tables(report) if memory else analysis(report, all_operators=operators)
    printing.emit(as_json, report.to_dict(), text)
