"""Memory of a model, and the plan by which it keeps to a budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["MemoryInfo", "PlanInfo"]


@dataclass(frozen=True)
class PlanInfo:
    """One way to run a model, as the planner of a memory budget saw it.

    Attributes
    ----------
    name : str
        ``"as is"``, ``"FC on the CPU"``, …
    peak : int or None
        Predicted bytes, as :attr:`MemoryInfo.peak` counts them; ``None`` of a plan that is not to
        be had for this model and target.
    seconds : float or None
        Predicted time of a frame, by the devices' data sheets.
    bound : str
        The term that dominates the time.
    taken : bool
    reason : str
        Reason to take it, or not to.
    pipelined : bool
        Whether frames are in flight on several devices, as ``model.stream`` has them.
    """

    name: str
    peak: int | None
    seconds: float | None
    bound: str
    taken: bool
    reason: str
    pipelined: bool = False


@dataclass(frozen=True)
class MemoryInfo:
    """Memory of a process that loads the exported model and runs it, in bytes.

    A model that runs in the process that compiled it has its weights, and the compiler, in memory
    too.

    Attributes
    ----------
    weights : int
        Constants, as stored.
    activations : int
        Storage that the planner gave to intermediate tensors, on all devices.
    workspace : int
        Scratch space inside kernels that the runtime keeps from one kernel to the next.
    inputs_outputs : int
        Inputs and outputs with known shapes.
    budget : int or None
        Budget that the user gave.
    by_device : dict[str, int]
        The activations of each device; empty for a model on one.
    over_time : dict[str, tuple[int, ...]]
        By device the bytes of activations that hold values while each of the report's `kernels`
        runs; at most what is planned for them. ``""`` is the device of a model on one. What only
        the run sizes is not counted. Empty where launches cannot be told from the plan.
    weights_by_device : dict[str, int]
        `weights` by the device that reads them; one that two devices read is there twice.
    mapped : int
        Part of `weights` that the CPU reads where they are mapped from the artifact, and those
        that are streamed from it. Their pages are clean: the operating system drops them when it
        wants, and they are in no budget.
    window : int
        Buffers on a GPU for the parts of streamed weights, and the pinned memory that they pass
        through with CUDA.
    rounding : int
        Bytes that the OpenCL runtime adds to tensors of a GPU, as its blocks have only a few sizes.
    programs : int
        Code of kernels as loaded, or as a driver built it, and what describes it.
    floor : int
        Memory of a process that loads a model of no size: Python, TVM's runtime, drivers.
    plans : tuple[PlanInfo, ...]
        Plans that the planner of a budget considered.
    """

    weights: int
    activations: int
    workspace: int
    inputs_outputs: int
    budget: int | None = None
    by_device: dict[str, int] = field(default_factory=dict)
    over_time: dict[str, tuple[int, ...]] = field(default_factory=dict)
    weights_by_device: dict[str, int] = field(default_factory=dict)
    mapped: int = 0
    window: int = 0
    rounding: int = 0
    programs: int = 0
    floor: int = 0
    plans: tuple[PlanInfo, ...] = ()

    @property
    def peak(self) -> int:
        """Bytes that count against a budget: anonymous and shared memory, and that of devices.

        Memory that host and device share counts once. Artifacts of earlier versions say nothing of
        `mapped`, `programs` and `floor`: all weights count, and the process itself does not.
        """
        resident = self.weights - self.mapped + self.window + self.activations + self.workspace
        return resident + self.rounding + self.inputs_outputs + self.programs + self.floor

    def plan_line(self) -> str:
        """One line: the plan that was taken for the budget; empty without one."""
        taken = next((plan for plan in self.plans if plan.taken), None)
        if taken is None or taken.peak is None or self.budget is None:
            return ""
        peak, budget = taken.peak / 2**20, self.budget / 2**20
        return f"{taken.name}, {peak:.1f} MiB of {budget:.1f} predicted"

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> MemoryInfo:
        """The inverse of :func:`dataclasses.asdict`, ``peak`` ignored."""
        stored = {key: value for key, value in fields.items() if key != "peak"}
        # Artifacts of earlier versions have neither.
        stored["over_time"] = {k: tuple(v) for k, v in stored.get("over_time", {}).items()}
        stored["plans"] = tuple(PlanInfo(**plan) for plan in stored.get("plans", ()))
        return cls(**stored)
