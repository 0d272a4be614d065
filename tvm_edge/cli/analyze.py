"""``tvm-edge analyze``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvm_edge.cli import common


@click.command("analyze")
@click.argument("model", required=False)
@common.several_models_option
@common.target_option("llvm")
@common.host_option
@common.input_shapes_option
@common.fallback_option
@common.tuning_records_option
@click.option("--operators", is_flag=True, help="List every operator, not just the types.")
@common.html_option
@common.json_option
def analyze_command(
    model: str | None,
    models: dict[str, str],
    target: Any,
    host: Any,
    input_shapes: Any,
    fallback: Any,
    tuning_logs: Any,
    operators: bool,
    html: Path | None,
    as_json: bool,
) -> None:
    """Say what MODEL, or several, take and where each of their operators would run.

    Operators, FLOPs and their distribution, bytes, weights, kernels and memory. Operators without
    an implementation are listed; that is an answer, and the exit status is 0.
    """
    import tvm_edge
    from tvm_edge.report.text import analysis

    chosen = common.chosen_models(model, models)
    with common.progress(f"analyzing {model or ', '.join(models)}"):
        report = tvm_edge.analyze(
            chosen,
            target,
            host=host,
            input_shapes=input_shapes,
            fallback=fallback,
            tuning_logs=tuning_logs,
        )
    if html:
        report.to_html(html)
    common.emit(as_json, report.to_dict(), analysis(report, all_operators=operators))
