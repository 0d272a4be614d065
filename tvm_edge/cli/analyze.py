"""``tvm-edge analyze``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvm_edge.cli import options, printing


@click.command("analyze")
@click.argument("model", required=False)
@options.several_models_option
@options.target_option("llvm")
@options.host_option
@options.input_shapes_option
@options.fallback_option
@options.tuning_records_option
@options.memory_budget_option
@click.option("--operators", is_flag=True, help="List every operator, not just the types.")
@click.option("--memory", is_flag=True, help="Where the memory is: by device, and by layer.")
@options.html_option
@options.json_option
def analyze_command(
    model: str | None,
    models: dict[str, str],
    target: Any,
    host: Any,
    input_shapes: Any,
    fallback: Any,
    tuning_logs: Any,
    memory_budget: str | None,
    operators: bool,
    memory: bool,
    html: Path | None,
    as_json: bool,
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
    with printing.progress(f"analyzing {named}"), printing.plain_warnings():
        report = tvm_edge.analyze(
            chosen,
            target,
            host=host,
            input_shapes=input_shapes,
            fallback=fallback,
            memory_budget=memory_budget,
            tuning_logs=tuning_logs,
        )
    if html:
        report.to_html(html)
    text = memory_tables(report) if memory else analysis(report, all_operators=operators)
    printing.emit(as_json, report.to_dict(), text)
