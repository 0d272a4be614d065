"""``tvm-edge analyze``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvm_edge.cli import common


@click.command("analyze")
@click.argument("model")
@common.target_option("llvm")
@common.host_option
@common.input_shapes_option
@click.option(
    "--fallback",
    "fallbacks",
    multiple=True,
    metavar="MODE|OPERATOR",
    help="auto (default), list, none or error; or an operator or node for the CPU. Repeatable.",
)
@click.option("--operators", is_flag=True, help="List every operator, not just the types.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report as an HTML page too.",
)
@common.json_option
def analyze_command(
    model: str,
    target: Any,
    host: Any,
    input_shapes: Any,
    fallbacks: tuple[str, ...],
    operators: bool,
    html: Path | None,
    as_json: bool,
) -> None:
    """Say what MODEL takes and where each of its operators would run.

    Operators, FLOPs and their distribution, bytes, weights, kernels and memory. Operators without
    an implementation are listed; that is an answer, and the exit status is 0.
    """
    import tvm_edge
    from tvm_edge.report.text import analysis

    with common.progress(f"analyzing {model}"):
        report = tvm_edge.analyze(
            model,
            target,
            host=host,
            input_shapes=input_shapes,
            fallback=_fallback(fallbacks),
        )
    if html:
        report.to_html(html)
    common.emit(as_json, report.to_dict(), analysis(report, all_operators=operators))


def _fallback(values: tuple[str, ...]) -> str | list[str]:
    """One mode, or names of operators."""
    if not values:
        return "auto"
    return values[0] if values in (("auto",), ("list",), ("none",), ("error",)) else list(values)
