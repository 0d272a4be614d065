"""The report of a compilation: its decisions as text, as a page and as a dictionary."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tvm_edge.files import whole_file, writing
from tvm_edge.report.decisions import Decisions, ModelAlone, Placement, read_kernels
from tvm_edge.report.layouts import LayoutsInfo
from tvm_edge.report.measured import Measured
from tvm_edge.report.memory import MemoryInfo
from tvm_edge.report.operators import OperatorInfo, UnsupportedInfo
from tvm_edge.report.precision import PrecisionInfo
from tvm_edge.report.records import RecordsInfo
from tvm_edge.report.splits import SplitInfo

__all__ = ["CompileReport"]

# What to_dict adds for those who read it, and from_dict works out again.
_DERIVED = ("flops", "operator_types", "flops_distribution")


@dataclass(frozen=True)
class CompileReport(Decisions):
    """Decisions of a compilation, readable by people (:meth:`summary`) and programs.

    Attributes
    ----------
    model, target : str
    placements : tuple[Placement, ...]
        One per operator of the model.
    partitions : tuple[tuple[str, int], ...]
        Device and number of kernels of each maximal run on one device.
    copies : tuple[dict, ...]
        Tensors passed between devices: ``tensor``, ``shape``, ``dtype``, ``source``,
        ``destination``, ``bytes`` (its size), ``zero_copy``: the devices share memory, and
        nothing is copied, and ``overlapped``: the GPU has other work meanwhile.
    fusion_groups : tuple[dict, ...]
        Independent kernels that are one launch, and the best of those that are not: ``operators``,
        ``kernels`` (by their own names), ``taken``, ``reason``, and the predicted microseconds
        ``apart_us`` and ``merged_us``, ``None`` where nothing can be said. What was merged because
        the user asked for it may be predicted to lose.
    kernels : tuple[KernelInfo, ...]
        In execution order.
    layouts : dict[str, str]
        By convolution the layout of its images, where it is not the model's own, and Winograd's
        algorithm where it is computed by that.
    memory : MemoryInfo or None
        ``None`` of a model with unsupported operators, for which no plan can be made.
    operators : tuple[OperatorInfo, ...]
        The work of each operator of the model, in the order of `placements`.
    unsupported : tuple[UnsupportedInfo, ...]
        Operators without an implementation; only :func:`tvm_edge.analyze` returns such a report,
        and :func:`tvm_edge.compile` raises.
    precision : PrecisionInfo or None
        With ``precision=`` ``"float16"``, ``"mixed"``, ``"bfloat16"``: which operators run in which
        type.
    records : RecordsInfo or None
        Number of convolutions that have their configuration from tuning records, and which records
        were ignored; ``None`` where none were asked for, or none can say anything.
    layout_choice : LayoutsInfo or None
        Choice of ``tune(…, graph=True)`` for the whole network; ``None`` where nobody did, and
        `layouts` are by estimates.
    models : tuple[ModelAlone, ...]
        Kernels and memory of each of several models where it runs alone. All else is of a run of
        all of them; `memory` has the activations of whichever needs more.
    splits : tuple[SplitInfo, ...]
        Layers whose weights every run reads from the artifact: ``"streamed"`` in the
        `weights_by_device` of `memory`.
    warnings : tuple[str, ...]
    seconds : dict[str, float]
        Time of each phase of the compilation, which sum up to its wall-clock time, and of the
        model's ``first run`` as soon as there was one.
    """

    def summary(self) -> str:
        """A page of text: placement, kernels, memory, warnings, unsupported operators."""
        from tvm_edge.report.text import summary

        return summary(self)

    def to_html(self, path: str | os.PathLike[str], profile: Measured | None = None) -> Path:
        """Write the report as one page that needs nothing else, and return its path.

        Parameters
        ----------
        path : path
        profile : Profile, optional
            Profile of the same model: ``model.profile()``. Without one the page has shares of FLOPs
            and bytes in place of times.

        Raises
        ------
        InputError
            The file cannot be written, or the profile is of another model.
        """
        from tvm_edge.report.page import page

        target = Path(path)
        content = page(self, profile).encode()
        with writing(target, "the report to"), whole_file(target, streams=True) as file:
            file.write(content)
        return target

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary; :meth:`from_dict` reads it back."""
        fields = {**asdict(self), **self.run_facts()}
        for model, own in zip(self.models, fields["models"], strict=True):
            own["memory"]["peak"] = model.memory.peak
        fields["flops"] = self.flops
        fields["operator_types"] = [asdict(row) for row in self.operator_types()]
        fields["flops_distribution"] = {
            of: asdict(self.flops_distribution(of)) for of in ("operators", "kernels")
        }
        return fields

    def run_facts(self) -> dict[str, Any]:
        """The part of :meth:`to_dict` that a run depends on: memory, and weights read in parts."""
        memory = self.memory
        return {
            "model": self.model,
            "memory": memory and {**asdict(memory), "peak": memory.peak},
            "splits": tuple(asdict(split) for split in self.splits),
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> CompileReport:
        """The inverse of :meth:`to_dict`."""
        stored = {key: value for key, value in fields.items() if key not in _DERIVED}
        memory = fields["memory"]
        precision, records = fields.get("precision"), fields.get("records")
        choice = fields.get("layout_choice")
        return cls(
            **{
                **stored,
                "placements": tuple(Placement(**p) for p in fields["placements"]),
                "kernels": read_kernels(fields["kernels"]),
                "memory": MemoryInfo.from_dict(memory) if memory else None,
                "partitions": tuple((d, n) for d, n in fields["partitions"]),
                "copies": tuple(fields["copies"]),
                "fusion_groups": tuple(fields["fusion_groups"]),
                "warnings": tuple(fields["warnings"]),
                # Artifacts of earlier versions do not have these.
                "precision": PrecisionInfo(**precision) if precision else None,
                "layout_choice": LayoutsInfo.from_dict(choice) if choice else None,
                "models": tuple(
                    ModelAlone(
                        m["name"], read_kernels(m["kernels"]), MemoryInfo.from_dict(m["memory"])
                    )
                    for m in fields.get("models", ())
                ),
                "splits": tuple(SplitInfo(**split) for split in fields.get("splits", ())),
                "records": RecordsInfo(**{**records, "ignored": tuple(records["ignored"])})
                if records
                else None,
                "operators": tuple(
                    OperatorInfo(**{**o, "inputs": tuple(o.get("inputs", ()))})
                    for o in fields.get("operators", ())
                ),
                "unsupported": tuple(
                    UnsupportedInfo(**{**u, "operators": tuple(u["operators"])})
                    for u in fields.get("unsupported", ())
                ),
            }
        )
