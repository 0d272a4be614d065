"""A model's entry into compiled code, and what the virtual machine raises there as our errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm.runtime.vm import VirtualMachine

from tvm_edge.errors import ArtifactError, InputError, one_line

__all__ = ["KERNEL_BY_KERNEL", "Main", "entry", "stage_name"]

KERNEL_BY_KERNEL = "main_kernel_by_kernel"
"""``main`` without recorded launches, in code that has them."""


def stage_name(number: int, device: int) -> str:
    """The function of a stage of ``main``, and the device, of a model's, that it runs on."""
    return f"main_stage_{number}_on_device_{device}"


Main = Callable[..., list[tvm.runtime.Tensor]]
"""A model's entry; what it returns is listed."""

# How the virtual machine and kernels refuse an argument.
_OTHER_ARGUMENTS = ("Invoking function main", "fn=main, loc=param", "when calling:")

# How a kernel's assertion begins (tvm_edge.schedules.emit.require).
_REFUSED = "the inputs' values do not fit: "


def entry(machine: VirtualMachine, name: str = "main") -> Main:
    """``main``, and what its checks of types and shapes raise as errors of ours."""
    main = machine[name]

    def call(*arguments: Any) -> list[tvm.runtime.Tensor]:
        try:
            results = _listed(main(*arguments))
        except (RuntimeError, TypeError, ValueError) as err:
            reason = str(err)
            if "std::bad_alloc" in reason:
                raise InputError(
                    "the run needs more memory than there is; check the inputs' values where "
                    "they say how large a result is, and the shapes the model was compiled for",
                    name="inputs",
                ) from err
            if any(sign in reason for sign in _OTHER_ARGUMENTS):
                raise ArtifactError(
                    "the code of this model takes other inputs or weights than its manifest "
                    f"says ({one_line(err)}); export it again"
                ) from err
            if _REFUSED in reason:  # a kernel's own check
                raise InputError(
                    f"{reason[reason.index(_REFUSED) :].splitlines()[0]}; check the inputs' values",
                    name="inputs",
                ) from err
            if "ErrorContext(" in reason:
                raise InputError(
                    "shapes that this model computes from its inputs' values do not fit "
                    f"({one_line(err)}); check the values",
                    name="inputs",
                ) from err
            raise  # the device's
        tensors = (result for result in results if isinstance(result, tvm.runtime.Tensor))
        if any(length < 0 for tensor in tensors for length in tensor.shape):
            raise InputError(
                "a shape that this model computes from its inputs' values is negative; "
                "check the values",
                name="inputs",
            )
        return results

    return call


def _listed(result: Any) -> list[tvm.runtime.Tensor]:
    return [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
