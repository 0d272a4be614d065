"""``tvm-edge tune``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvm_edge.cli import options, printing

if TYPE_CHECKING:
    from tvm_edge.tuning import Progress

_LISTED = 10  # convolutions in the table


@click.command("tune")
@click.argument("model", required=False)
@options.several_models_option
@options.target_option("llvm")
@options.host_option
@options.input_shapes_option
@options.input_values_option
@options.preprocess_option
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    help="Configurations to measure in all, in place of those of the level.",
)
@click.option(
    "--time-budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Seconds that the run may take, the last round by estimate.",
)
@click.option(
    "--level",
    type=click.Choice(("fast", "normal", "exhaustive")),
    default="normal",
    show_default=True,
    help="10 or 64 trials for each distinct convolution on average, or all there are.",
)
@click.option(
    "--precision",
    type=click.Choice(("float32", "tf32", "float16", "mixed")),
    default="float32",
    show_default=True,
    help="That the model will be compiled with: others than float32 are tuned on tensor cores.",
)
@click.option(
    "--graph",
    is_flag=True,
    help="Choose the layouts of the whole network as well.",
)
@click.option(
    "--parallel-fusion",
    is_flag=True,
    help="Measure groups of independent kernels in one launch as well, on this machine.",
)
@click.option("--resume", is_flag=True, help="Go on with the run that was interrupted.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of what is tried at random; a run is resumed with its own.",
)
@options.records_folder_option
@options.rpc_options
@options.json_option
def tune_command(
    model: str | None,
    models: dict[str, str],
    target: Any,
    host: Any,
    input_shapes: Any,
    input_values: Any,
    preprocess: Any,
    trials: int | None,
    time_budget: float | None,
    level: str,
    precision: str,
    graph: bool,
    parallel_fusion: bool,
    resume: bool,
    seed: int,
    tuning_logs: Any,
    rpc_tracker: str | None,
    rpc_key: str | None,
    as_json: bool,
) -> None:
    """Find the fastest kernels of MODEL (an ONNX file or zoo:NAME), or of several, on a device of
    this machine, or on all boards of a key at once.

    What is measured goes into your tuning records, which compile takes from then on. Ctrl-C ends a
    run and loses nothing; --resume goes on with it.
    """
    import tvm_edge

    chosen = options.chosen_models(model, models)
    with _progress(model or ", ".join(models), time_budget) as show:
        result = tvm_edge.tune(
            chosen,
            target,
            trials=trials,
            time_budget=time_budget,
            level=level,
            precision=precision,
            graph=graph,
            parallel_fusion=parallel_fusion,
            host=host,
            input_shapes=input_shapes,
            input_values=input_values,
            preprocess=preprocess,
            tracker=rpc_tracker,
            key=rpc_key,
            tuning_logs=tuning_logs,
            resume=resume,
            seed=seed,
            callbacks=(show,),
        )
    printing.emit(as_json, result.to_dict(), f"{result.table(_LISTED)}{result.summary()}")
    if result.interrupted:
        raise click.Abort


@contextmanager
def _progress(model: str, time_budget: float | None) -> Iterator[Callable[[Progress], None]]:
    """A bar on standard error, moved by the function yielded; nothing if not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    with Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[state]}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        bar = bars.add_task(f"tuning {Path(model).name}", total=None, state="")

        def show(at: Progress) -> None:
            bars.update(bar, completed=at.trials, total=at.total, state=_state(at, time_budget))

        yield show


def _state(at: Progress, time_budget: float | None) -> str:
    """Trials, tasks, the best of the task that gained most, trials a second, and time to go."""
    left = at.remaining
    if time_budget is not None:
        left = min(left, time_budget - at.seconds)
    to_go = f"{timedelta(seconds=round(max(left, 0)))} left" if isfinite(left) else "– left"
    return (
        f"{at.trials}/{at.total} trials, {at.tuned}/{at.tasks} tasks faster, "
        f"{at.gflops:.1f} GFLOP/s, {at.rate:.1f} trials/s, {to_go}"
    )
