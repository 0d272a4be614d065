"""How long the compiler's phases take, and what goes wrong in one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from tvm_edge.errors import CompilationError, TvmEdgeError, one_line

__all__ = ["Clock"]

_LOG = logging.getLogger("tvm_edge.compiler")


class Clock:
    """Wall-clock seconds of named phases, and whatever they raise as an error of ours."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        except TvmEdgeError:
            raise
        # A model is anybody's file, and TVM meets what it did not foresee with any exception.
        except Exception as err:
            _LOG.info("phase %r failed", name, exc_info=True)
            raise CompilationError(
                f"the compiler fails on this model in its phase {name!r} "
                f"({type(err).__name__}: {one_line(err)}); simplify the model, and report it "
                "with the model if ONNX Runtime runs it"
            ) from err
        self.seconds[name] = round(perf_counter() - start, 3)
