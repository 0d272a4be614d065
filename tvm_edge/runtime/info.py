"""Facts of a model in an artifact's manifest: written by the compiler, checked when read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import tvm
import tvm_ffi

from tvm_edge.errors import ArtifactError, one_line
from tvm_edge.report import CompileReport, Launches, ModelPart, TensorSpec
from tvm_edge.runtime.artifact import Artifact, tensor_dtype
from tvm_edge.runtime.device_plan import STREAMED, DevicePlan
from tvm_edge.schema import check_types

__all__ = ["ModelInfo", "read_info", "versions"]


def versions() -> dict[str, str]:
    """Versions of what an artifact's library depends on."""
    from tvm_edge._version import __version__

    return {
        "tvm_edge": __version__,
        "tvm": str(tvm.__version__),
        "tvm_ffi": str(tvm_ffi.__version__),
    }


@dataclass(frozen=True)
class ModelInfo:
    """Manifest of an artifact, weights and checksums aside.

    Attributes
    ----------
    inputs, outputs : tuple[TensorSpec, ...]
    target : dict
        ``kind`` (``llvm``, ``opencl``, ``cuda``), ``config`` (TVM's target as JSON), ``triple``,
        ``architecture`` and ``features`` of the host code, ``device``.
    devices : DevicePlan
    report : CompileReport
    models : tuple[ModelPart, ...]
        Of an artifact with several models, or with one that has a name.
    smaller : Launches or None
        Of an artifact's library with smaller work-groups, if it has one.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    target: dict[str, Any]
    devices: DevicePlan
    report: CompileReport
    models: tuple[ModelPart, ...] = ()
    smaller: Launches | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary."""
        return {
            **self.signature(),
            "report": self.report.to_dict(),
            **({"smaller": asdict(self.smaller)} if self.smaller else {}),
        }

    def signature(self) -> dict[str, Any]:
        """The part of :meth:`to_dict` that says how the model is run; a few rows of its report."""
        return {
            "inputs": [spec.to_dict() for spec in self.inputs],
            "outputs": [spec.to_dict() for spec in self.outputs],
            "target": self.target,
            "devices": self.devices.to_dict(),
            "report": self.report.run_facts(),
            "models": [asdict(part) for part in self.models],
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ModelInfo:
        """The inverse of :meth:`to_dict`."""
        return cls(
            tuple(TensorSpec.from_dict(spec) for spec in fields["inputs"]),
            tuple(TensorSpec.from_dict(spec) for spec in fields["outputs"]),
            dict(fields["target"]),
            DevicePlan.from_dict(fields["devices"]),
            CompileReport.from_dict(fields["report"]),
            # Artifacts of earlier versions do not have them.
            tuple(ModelPart.from_dict(part) for part in fields.get("models", ())),
            Launches.from_dict(fields["smaller"]) if "smaller" in fields else None,
        )


def read_info(artifact: Artifact) -> ModelInfo:
    """Read the manifest of an artifact, and check it.

    Raises
    ------
    ArtifactError
        The manifest is damaged.
    """
    path = artifact.name
    try:
        check_types(artifact.manifest.get("versions", {}), dict[str, str], "versions")
        info = ModelInfo.from_dict(artifact.manifest)
        _check_info(info, len(artifact.weights))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as err:
        raise ArtifactError(
            f"the manifest of {path!r} is damaged ({type(err).__name__}: {one_line(err)}); "
            "export it again"
        ) from err
    return info


def _check_info(info: ModelInfo, weights: int) -> None:
    """Refuse what no compiler wrote: other types, plans for inputs and weights that are not there.

    Parameters
    ----------
    info : ModelInfo
        As read from a file.
    weights : int
        How many there are.

    Raises
    ------
    ValueError
    """
    check_types(info, ModelInfo, "manifest")
    check_types(info.target["architecture"], str, "the architecture")
    check_types(info.target["features"], list[str], "the CPU features")
    check_types(info.target["kind"], Literal["llvm", "opencl", "cuda"], "the kind of target")
    for kind in info.devices.kinds:
        check_types(kind, Literal["llvm", "opencl", "cuda"], "a kind of device")
    if not info.outputs:
        raise ValueError("there are no outputs")
    for specs in (info.inputs, info.outputs):
        if len({spec.name for spec in specs}) != len(specs):
            raise ValueError("two inputs or two outputs have one name")
    for spec in (*info.inputs, *info.outputs):
        lengths = [length for length in spec.shape if isinstance(length, int)]
        nbytes = math.prod(lengths) * tensor_dtype(spec.dtype).itemsize
        if min(lengths, default=0) < 0 or nbytes >= 1 << 63:
            raise ValueError(f"{spec} is no tensor")
        if (
            spec.stored_as
            and tensor_dtype(spec.stored_as).itemsize != tensor_dtype(spec.dtype).itemsize
        ):
            raise ValueError(f"{spec} is not stored as {spec.stored_as}")
    for spec in info.inputs:
        if {length for length in spec.shape if isinstance(length, str)} != {
            dim.name for dim in spec.dims
        }:
            raise ValueError(f"the shape of the input {spec.name!r} has other open dimensions")
    if info.smaller and len(info.smaller.alone) != len(info.report.models):
        raise ValueError("models and what they launch in smaller work-groups differ in number")
    streamed = info.devices.weights.count(STREAMED)
    for what, plan, count in (
        ("inputs", info.devices.inputs, len(info.inputs)),
        ("weights", [d for d in info.devices.weights if d != STREAMED], weights - streamed),
    ):
        if len(plan) != count or not set(plan) <= set(range(len(info.devices.kinds))):
            raise ValueError(f"the plan of devices does not fit {count} {what}")
    _check_models(info)
    for position, operator in enumerate(info.report.operators):
        if not set(operator.inputs) <= set(range(position)):
            raise ValueError(f"the operator {operator.name!r} reads what is not in front of it")
    memory = info.report.memory
    for series in memory.over_time.values() if memory else ():
        if len(series) != len(info.report.kernels):
            raise ValueError("memory over time does not fit the kernels")


def _check_models(info: ModelInfo) -> None:
    """Refuse models that are not made of the inputs and outputs, one's after the other's."""
    if not info.models:
        return
    for what, specs in (("inputs", info.inputs), ("outputs", info.outputs)):
        positions = [position for part in info.models for position in getattr(part, what)]
        if positions != list(range(len(specs))):
            raise ValueError(f"the models do not share out the {what}")
        for part in info.models:
            for position in getattr(part, what):
                if not specs[position].name.startswith(f"{part.name}/"):
                    raise ValueError(f"{specs[position].name!r} is not the model {part.name!r}'s")
    names = [part.name for part in info.models]
    if len(set(names)) != len(names):
        raise ValueError("two models have one name")
    if len(names) > 1 and [model.name for model in info.report.models] != names:
        raise ValueError("the report is of other models")
