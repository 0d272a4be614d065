"""In which types a model calculates and is stored."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["PrecisionInfo"]


@dataclass(frozen=True)
class PrecisionInfo:
    """Result of ``precision=`` for a model.

    Attributes
    ----------
    mode : {"float16", "mixed", "bfloat16"}
    operators : dict of str to str
        :attr:`lower` or ``"float32"`` by operator of the model, of those with float results. One
        of float16 reads, or writes, float16; its accumulators are float32 in ``"mixed"``.
    reasons : dict of str to str
        Reasons of operators that could have been of the lower type and are not.
    casts : int
        Tensors that are converted in a run, most of them inside of other kernels.
    weight_bytes, weight_bytes_before : int
        Bytes of the model's constants as stored now and as they came, before any kernel packs them.
    estimated_us, float32_us : float
        With ``"mixed"``: estimated latency of the model as it is, and in float32; 0 without one.
    float16_kernels : int
        Kernels of a CPU that add products up in float16, over short runs of a reduction.
    """

    mode: str
    operators: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    casts: int = 0
    weight_bytes: int = 0
    weight_bytes_before: int = 0
    estimated_us: float = 0.0
    float32_us: float = 0.0
    float16_kernels: int = 0

    @property
    def lower(self) -> str:
        """The type that is stored in place of float32."""
        return "bfloat16" if self.mode == "bfloat16" else "float16"

    @property
    def stores_float16(self) -> bool:
        """Return whether a tensor of the model is float16, which may overflow."""
        return "float16" in self.operators.values()

    def line(self) -> str:
        """One line of a summary."""
        halves = list(self.operators.values()).count(self.lower)
        plural = "" if self.casts == 1 else "s"
        share = self.estimated_us / self.float32_us if self.float32_us else 0.0
        estimate = f", {share:.2f} of float32's latency by the estimate" if share else ""
        many = "" if self.float16_kernels == 1 else "s"
        multiplied = (
            f", {self.float16_kernels} kernel{many} with float16 arithmetic"
            if self.float16_kernels
            else ""
        )
        return (
            f"{self.mode}: {halves} of {len(self.operators)} operators on {self.lower}, "
            f"{self.casts} conversion{plural}, weights {self.weight_bytes / 2**20:.1f} MiB instead "
            f"of {self.weight_bytes_before / 2**20:.1f}{multiplied}{estimate}"
        )
