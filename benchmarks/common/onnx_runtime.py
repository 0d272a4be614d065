"""ONNX Runtime on the CPU: the reference, and a peer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Run", "onnxruntime_function", "onnxruntime_session"]

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


def onnxruntime_session(
    model: Any,
    threads: int = 0,
    *,
    profile: Path | None = None,
    spinning: bool = True,
    optimised: bool = True,
) -> Any:
    """A session for the shortest time of one run.

    Parameters
    ----------
    model : onnx.ModelProto or Path
    threads : int
        0: as many as ONNX Runtime takes by itself.
    profile : Path, optional
        Beginning of the path of the file that its profiler writes.
    spinning : bool
        Whether its threads spin until the next operator comes, as they do by default.
    optimised : bool
        Whether the graph is optimised; if not, outputs show what rounding alone changes.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimised:
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = level
    source = model if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def onnxruntime_function(
    model: Any, threads: int = 0, *, spinning: bool = True, optimised: bool = True
) -> Run:
    """A function that runs a model once, from arrays to arrays, both by name."""
    session = onnxruntime_session(model, threads, spinning=spinning, optimised=optimised)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))
