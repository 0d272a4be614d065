"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tvm_edge.cli.pictures import EXAMPLE, parse_pictures
from tvm_edge.report.dims import Dim, parse_dim

__all__ = [
    "chosen_models",
    "compilation_options",
    "host_option",
    "html_option",
    "input_shapes_option",
    "input_values_option",
    "json_option",
    "opened_model_options",
    "parallel_fusion_of",
    "precision_options",
    "preprocess_option",
    "records_folder_option",
    "rpc_options",
    "several_models_option",
    "target_option",
]


_F = TypeVar("_F", bound=Callable[..., Any])


def _parse_target(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Any:
    """A name, or a JSON object for what TVM takes as a dict."""
    if value is None or not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as err:
        raise click.BadParameter(f"not valid JSON: {err}") from err


def _parse_shapes(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[int | str | Dim, ...]]:
    shapes = {}
    for value in values:
        name, colon, dims = value.rpartition(":")
        try:
            if not colon or not name:
                raise ValueError("no name")
            shapes[name] = tuple(_length(d.strip()) for d in dims.strip("[]()").split(","))
        except ValueError as err:
            raise click.BadParameter(
                f"{value!r} is not NAME:DIM,DIM,… (for example data:1,3,224,224, or "
                "data:n,3,h,w=32..2048/8@320 with dimensions that are open)"
            ) from err
    return shapes


def _length(text: str) -> int | str | Dim:
    try:
        return int(text)
    except ValueError:
        dim = parse_dim(text)
        return dim.name if dim == Dim(dim.name) else dim


def target_option(default: str | None) -> Callable[[_F], _F]:
    """``--target``: a name or a JSON object; no default where an artifact has its own."""
    return click.option(
        "--target",
        default=default,
        callback=_parse_target,
        help="llvm (default: this CPU), opencl, cuda, a preset (mali-t860), a TVM tag, or JSON: "
        '{"kind": "llvm", "mcpu": "znver4"}.',
    )


host_option = click.option(
    "--host",
    callback=_parse_target,
    help="The CPU beside a GPU, written as a target; default what the target says.",
)
"""``--host``: the CPU beside a GPU."""


def _parse_fallback(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> str | list[str]:
    """One mode, or names of operators."""
    if not values:
        return "auto"
    return values[0] if values in (("auto",), ("list",), ("none",), ("error",)) else list(values)


_fallback_option = click.option(
    "--fallback",
    multiple=True,
    callback=_parse_fallback,
    metavar="MODE|OPERATOR",
    help="auto (default), list, none or error; or an operator or node for the CPU. Repeatable.",
)
"""``--fallback``, repeatable."""


input_shapes_option = click.option(
    "--input-shapes",
    multiple=True,
    callback=_parse_shapes,
    metavar="NAME:DIMS",
    help="Shape of an input: data:1,3,224,224, or with names of dimensions that stay open, "
    "data:n,3,h,w=32..2048/8@320 (from 32 to 2048, multiples of 8, mostly 320). Repeatable.",
)
"""``--input-shapes NAME:DIMS``, repeatable."""


def _parse_values(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for value in values:
        name, colon, text = value.rpartition(":")
        try:
            if not colon or not name:
                raise ValueError("no name")
            numbers = [_number(word) for word in text.split(",") if word.strip()]
            parsed[name] = numbers if "," in text else numbers[0]
        except (ValueError, IndexError) as err:
            raise click.BadParameter(
                f"{value!r} is not NAME:NUMBER or NAME:NUMBER,… (for example sr:16000)"
            ) from err
    return parsed


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


input_values_option = click.option(
    "--input-values",
    multiple=True,
    callback=_parse_values,
    metavar="NAME:VALUES",
    help="Value of an input that becomes a constant: sr:16000, or size:640,640 of a vector "
    "(k:5, of one element). Repeatable.",
)
"""``--input-values NAME:VALUES``, repeatable."""


preprocess_option = click.option(
    "--preprocess",
    multiple=True,
    callback=parse_pictures,
    metavar="NAME:KEY=VALUE,…",
    help=f"An input that is a picture, prepared in the model: {EXAMPLE}. Numbers for each channel "
    "are mean=123.7/116.3/103.5. Repeatable.",
)
"""``--preprocess``, repeatable."""


def _parse_models(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    models: dict[str, str] = {}
    for value in values:
        name, equals, model = value.partition("=")
        if not equals or not name or not model:
            raise click.BadParameter(f"{value!r} is not NAME=MODEL (for example detector=ssd.onnx)")
        if name in models:
            raise click.BadParameter(f"two models are called {name!r}; give each a name of its own")
        models[name] = model
    return models


several_models_option = click.option(
    "--model",
    "models",
    multiple=True,
    callback=_parse_models,
    metavar="NAME=MODEL",
    help="In place of MODEL, one of several for the same artifact. Repeatable.",
)
"""``--model NAME=MODEL``, repeatable, in place of the argument MODEL."""


def chosen_models(model: str | None, models: dict[str, str]) -> str | dict[str, str]:
    """The argument MODEL, or the options ``--model``.

    Raises
    ------
    click.UsageError
        Neither or both.
    """
    if (model is None) == (not models):
        raise click.UsageError("Give one MODEL, or several as --model NAME=MODEL.")
    return models if model is None else model


_only_option = click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    callback=lambda _ctx, _param, values: list(values) or None,
    help="Of an artifact with several models, one to run. Repeatable; default all.",
)
"""``--only NAME``, repeatable: some of an artifact's models."""


_threads_option = click.option(
    "--num-threads",
    type=click.IntRange(min=1),
    help="CPU threads; default TVM_NUM_THREADS, else all physical cores that may be used.",
)
"""``--num-threads``."""


def _parse_cpus(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> list[int] | None:
    """Parse CPUs as ``taskset`` takes them: ``4-7`` or ``0,2,4-5``."""
    if value is None:
        return None
    cpus: list[int] = []
    for part in value.split(","):
        first, dash, last = part.partition("-")
        numbers = (first, last) if dash else (first, first)
        if not all(number.isdecimal() for number in numbers) or int(numbers[0]) > int(numbers[1]):
            raise click.BadParameter(f"{part!r} is no CPU; write them as 4-7 or 0,2,4-5")
        cpus += range(int(numbers[0]), int(numbers[1]) + 1)
    return cpus


_cpus_option = click.option(
    "--cpus",
    callback=_parse_cpus,
    metavar="LIST",
    help="CPUs that kernels keep to, as 4-7 or 0,2; default all that may be used.",
)
"""``--cpus``."""


def _parse_records(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> str | bool | None:
    return False if value == "none" else value


_memory_budget_option = click.option(
    "--memory-budget",
    metavar="SIZE",
    help="What a process that loads the model and runs it may take, as 512MiB or 1.5GB: the "
    "fastest plan that fits is taken.",
)
"""``--memory-budget``."""


_tuning_records_option = click.option(
    "--tuning-records",
    "tuning_logs",
    callback=_parse_records,
    metavar="PATH|none",
    help="Folder or file of tuning records in place of your own, or none at all.",
)
"""``--tuning-records``."""


records_folder_option = click.option(
    "--tuning-records",
    "tuning_logs",
    callback=_parse_records,
    metavar="FOLDER",
    help="Folder in place of your own.",
)
"""``--tuning-records`` of a command that writes them."""


html_option = click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report as an HTML page too.",
)
"""``--html``."""


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
"""``--json``."""


def rpc_options(command: _F) -> _F:
    """``--rpc-tracker`` and ``--rpc-key``: a board in place of this machine."""
    tracker = click.option(
        "--rpc-tracker",
        metavar="HOST:PORT",
        help="A board in place of this machine: where the tracker is, or without --rpc-key the "
        "board's own rpc-server.",
    )
    key = click.option("--rpc-key", metavar="KEY", help="The key of boards at the tracker.")
    return tracker(key(command))


def compilation_options(command: _F) -> _F:
    """Add the options that ``tvm_edge.compile`` and ``tvm_edge.analyze`` share, named as there."""
    return _with_options(
        command,
        target_option("llvm"),
        host_option,
        input_shapes_option,
        input_values_option,
        preprocess_option,
        _fallback_option,
        _tuning_records_option,
        _memory_budget_option,
    )


_PARALLEL_FUSION: dict[str, str | bool] = {"auto": "auto", "on": True, "off": False}


def parallel_fusion_of(word: str) -> str | bool:
    """Value of ``parallel_fusion=`` for a word of the command line."""
    return _PARALLEL_FUSION[word]


def precision_options(command: _F) -> _F:
    """Add the options of ``tvm_edge.compile`` that ``tvm_edge.analyze`` does not have."""
    return _with_options(
        command,
        click.option(
            "--precision",
            default="float32",
            show_default=True,
            help="tf32: products may round to it, on the tensor cores of an NVIDIA GPU (target "
            "cuda). mixed: float16 is stored where that is faster by estimate; float16: wherever "
            "it can be; on GPUs and CPUs that have it. bfloat16: it is stored, on CPUs, and "
            "multiplied where a CPU does that.",
        ),
        click.option(
            "--keep-float32",
            "precision_exceptions",
            multiple=True,
            metavar="OPERATOR",
            help="With mixed, float16 and bfloat16, an operator or node that stays float32. "
            "Repeatable.",
        ),
        click.option(
            "--parallel-fusion",
            type=click.Choice(list(_PARALLEL_FUSION)),
            default="auto",
            show_default=True,
            callback=lambda _ctx, _param, value: parallel_fusion_of(value),
            help="Independent kernels in one launch: where it is predicted to gain, wherever it "
            "can be, or never.",
        ),
    )


def opened_model_options(command: _F) -> _F:
    """All that :func:`tvm_edge.cli.loading.opened_model` takes, and which of its models run."""
    return _with_options(
        command,
        target_option(None),
        input_shapes_option,
        input_values_option,
        preprocess_option,
        _tuning_records_option,
        _threads_option,
        _cpus_option,
        _only_option,
        rpc_options,
    )


def _with_options(command: _F, *options: Callable[[_F], _F]) -> _F:
    """In this order in the help."""
    for option in reversed(options):
        command = option(command)
    return command
