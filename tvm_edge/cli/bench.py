"""``tvm-edge bench`` and ``tvm-edge profile``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvm_edge.cli import common


@click.command("bench")
@click.argument("model")
@click.option("--repeat", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--warmup", type=click.IntRange(min=0), default=3, show_default=True)
@common.target_option(None)
@common.input_shapes_option
@common.tuning_records_option
@common.threads_option
@common.only_option
@common.rpc_options
@common.json_option
def bench_command(
    model: str,
    repeat: int,
    warmup: int,
    target: Any,
    input_shapes: Any,
    tuning_logs: Any,
    num_threads: int | None,
    only: list[str] | None,
    rpc_tracker: str | None,
    rpc_key: str | None,
    as_json: bool,
) -> None:
    """Measure the latency of MODEL (an ONNX file, zoo:NAME, or an artifact), here or on a board."""
    with (
        common.opened_model(
            model, target, input_shapes, num_threads, tuning_logs, rpc_tracker, rpc_key
        ) as opened,
        common.progress(f"measuring {model}"),
    ):
        result = opened.benchmark(models=only, warmup=warmup, repeat=repeat)
    common.emit(as_json, result.to_dict(), str(result))


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
@common.html_option
@common.target_option(None)
@common.input_shapes_option
@common.tuning_records_option
@common.threads_option
@common.only_option
@common.rpc_options
@common.json_option
def profile_command(
    model: str,
    repeat: int,
    print_top: int,
    trace: Path | None,
    html: Path | None,
    target: Any,
    input_shapes: Any,
    tuning_logs: Any,
    num_threads: int | None,
    only: list[str] | None,
    rpc_tracker: str | None,
    rpc_key: str | None,
    as_json: bool,
) -> None:
    """Measure each kernel of MODEL (an ONNX file, zoo:NAME, or an artifact), here or on a board."""
    if html and only:
        raise click.UsageError("A page is of all models; leave out --html or --only.")
    with (
        common.opened_model(
            model, target, input_shapes, num_threads, tuning_logs, rpc_tracker, rpc_key
        ) as opened,
        common.progress(f"profiling {model}"),
    ):
        profile = opened.profile(models=only, repeat=repeat)
    if trace:
        with common.writing(trace):
            profile.to_chrome_trace(trace)
    if html:
        opened.report.to_html(html, profile)
    common.emit(as_json, profile.to_dict(), profile.table(print_top))
