"""``tvm-edge bench`` and ``tvm-edge profile``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvm_edge.cli import loading, options, printing
from tvm_edge.cli.busy import busy_processes
from tvm_edge.cli.throughput import Throughput, measure_throughput
from tvm_edge.files import temporary_folder
from tvm_edge.host import allowed_cpus, physical_cores


@click.command("bench")
@click.argument("model")
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Runs that are measured.",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Runs before those.",
)
@click.option(
    "--load",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Measure again beside N busy processes on the same CPUs.",
)
@click.option(
    "--mode",
    type=click.Choice(["latency", "throughput"]),
    default="latency",
    show_default=True,
    help="One run after the other, or several copies of the model at once on this CPU.",
)
@click.option(
    "--streams",
    type=click.IntRange(min=1),
    help="Of throughput: copies; default one for each core.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    help="Of throughput: how long.",
)
@options.opened_model_options
@options.json_option
def bench_command(
    model: str,
    repeat: int,
    warmup: int,
    load: int,
    mode: str,
    streams: int | None,
    seconds: float,
    only: list[str] | None,
    as_json: bool,
    **opening: Any,
) -> None:
    """Measure MODEL (an ONNX file, zoo:NAME, or an artifact), here or on a board.

    A batch is a shape of the input: --input-shapes data:8,3,224,224.
    """
    if mode == "throughput":
        if load or opening["rpc_tracker"] or opening["rpc_key"]:
            raise click.UsageError("--mode throughput is of this machine, and without --load.")
        rate = _throughput(model, only, opening, streams=streams, seconds=seconds, warmup=warmup)
        printing.emit(as_json, rate.to_dict(), str(rate))
        return
    if streams:
        raise click.UsageError("--streams is of --mode throughput.")
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


def _throughput(
    model: str, only: list[str] | None, opening: dict[str, Any], **how: Any
) -> Throughput:
    """Compile a model to an artifact if it is none, and run copies of it."""
    cpus = opening["cpus"] or allowed_cpus()
    cores = opening["num_threads"] or physical_cores(cpus)
    with temporary_folder("throughput") as folder:
        artifact = Path(model)
        if not loading.is_artifact(model, opening):
            artifact = folder / "model.tvme"
            with loading.opened_model(model, **opening) as opened:
                opened.export(artifact)
        with printing.progress(f"measuring {model}"):
            return measure_throughput(artifact, cpus=cpus, cores=cores, models=only, **how)


@click.command("profile")
@click.argument("model")
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Runs that are measured.",
)
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
        profile.to_chrome_trace(trace)
    if html:
        opened.report.to_html(html, profile)
    printing.emit(as_json, profile.to_dict(), profile.table(print_top))
