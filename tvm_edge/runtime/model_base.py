"""Base of models: what is known of one without running it, wherever it runs."""

from __future__ import annotations

from tvm_edge.report import CompileReport, TensorSpec
from tvm_edge.runtime.info import ModelInfo

__all__ = ["ModelBase"]


class ModelBase:
    """Model with a manifest, which says all that can be known without running it.

    Parameters
    ----------
    info : ModelInfo
    """

    def __init__(self, info: ModelInfo) -> None:
        self._info = info

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Names, shapes and types of the inputs."""
        return self._info.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Names, shapes and types of the outputs."""
        return self._info.outputs

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models, of an artifact that was compiled from a dict of them."""
        return tuple(part.name for part in self._info.models)

    @property
    def report(self) -> CompileReport:
        """Decisions of the compiler."""
        return self._info.report
