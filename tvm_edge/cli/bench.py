"""``tvm-edge bench`` and ``tvm-edge profile``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvm_edge.cli import loading, options, printing
from tvm_edge.cli.busy import busy_processes


@click.command("bench")
@click.argument("model")
@click.option("--repeat", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--warmup", type=click.IntRange(min=0), default=3, show_default=True)
@click.option(
    "--load",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Measure again beside N busy processes on the same CPUs.",
)
@options.opened_model_options
@options.json_option
def bench_command(
    model: str,
    repeat: int,
    warmup: int,
    load: int,
    only: list[str] | None,
    as_json: bool,
    **opening: Any,
) -> None:
    """Measure the latency of MODEL (an ONNX file, zoo:NAME, or an artifact), here or on a board."""
    if load and (opening["rpc_tracker"] or opening["rpc_key"]):
        raise click.UsageError(
            "--load makes this machine busy, not a board; leave out one of them."
        )
    how = {"models": only, "warmup": warmup, "repeat": repeat}
    with loading.opened_model(model, **opening) as opened:
        with printing.progress(f"measuring {model}"):
            result = opened.benchmark(**how)
        if not load:
            printing.emit(as_json, result.to_dict(), str(result))
            return
        with (
            printing.progress(f"measuring {model} beside {load} busy processes"),
            busy_processes(load, opening["cpus"]),
        ):
            loaded = opened.benchmark(**how)
    found = {"idle": result.to_dict(), "loaded": loaded.to_dict(), "load": load}
    printing.emit(as_json, found, f"idle:   {result}\nloaded: {loaded}, {load} busy processes")


@click.command("profile")
@click.argument("model")
@click.option("--repeat", type=click.IntRange(min=1), default=10, show_default=True)
@click.option(
    "--print-top",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Kernels to show, longest first.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a timeline for chrome://tracing or Perfetto.",
)
@options.html_option
@options.opened_model_options
@options.json_option
def profile_command(
    model: str,
    repeat: int,
    print_top: int,
    trace: Path | None,
    html: Path | None,
    only: list[str] | None,
    as_json: bool,
    **opening: Any,
) -> None:
    """Measure each kernel of MODEL (an ONNX file, zoo:NAME, or an artifact), here or on a board."""
    if html and only:
        raise click.UsageError("A page is of all models; leave out --html or --only.")
    with (
        loading.opened_model(model, **opening) as opened,
        printing.progress(f"profiling {model}"),
    ):
        profile = opened.profile(models=only, repeat=repeat)
    if trace:
        with printing.writing(trace):
            profile.to_chrome_trace(trace)
    if html:
        opened.report.to_html(html, profile)
    printing.emit(as_json, profile.to_dict(), profile.table(print_top))
