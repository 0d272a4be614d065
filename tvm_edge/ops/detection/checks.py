"""Checks of attributes and shapes that operators of detectors share."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx

from tvm_edge.relay_passes.ir.expressions import static_shape

__all__ = ["check_threshold", "four_variances", "is_known", "is_other", "refusal"]


def check_threshold(operator: str, name: str, value: float) -> None:
    """Refuse a ratio outside [0, 1] with a ValueError."""
    if not 0 <= value <= 1:
        raise ValueError(f"{operator}: {name} is {value}, and not between 0 and 1")


def four_variances(name: str, variances: Sequence[float]) -> list[float]:
    """Return four numbers that encodings are multiplied by.

    Raises
    ------
    ValueError
    """
    if len(variances) != 4:
        raise ValueError(f"{name}: variances must be four numbers, not {variances}")
    return [float(variance) for variance in variances]


def is_known(tensor: relax.TensorType) -> bool:
    """Return whether a tensor is float32, and its shape known before the run."""
    return static_shape(tensor) is not None and str(tensor.dtype) == "float32"


def is_other(a: object, b: object) -> bool:
    """Return whether two lengths are known to differ."""
    return isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm) and int(a) != int(b)


def refusal(name: str, wanted: str, tensors: Sequence[relax.TensorType]) -> ValueError:
    """Make the error of tensors that do not fit."""
    each = ", ".join(f"{tensor.dtype} {tensor.shape}" for tensor in tensors)
    return ValueError(f"{name}: {wanted}, not {each}")
