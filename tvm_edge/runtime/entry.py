"""A model's entry into compiled code, and what the virtual machine raises there as our errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.runtime.vm import VirtualMachine

from tvm_edge.errors import ArtifactError, InputError, one_line

__all__ = [
    "ALL",
    "KERNEL_BY_KERNEL",
    "UNALIGNED",
    "Entry",
    "Main",
    "by_shape",
    "entry",
    "function_of",
    "kernel_by_kernel",
    "part_sizes",
    "stage_name",
]

ALL = "main"
"""The entry that runs all models of an artifact."""


UNALIGNED = "unaligned_inputs"
"""A function that tells, as a shape, which inputs kernels of the CPU read wherever they begin."""


def function_of(model: int) -> str:
    """The entry of one of several models, by its number."""
    return f"{ALL}_{model}"


def kernel_by_kernel(function: str) -> str:
    """An entry without recorded launches, in code that has them."""
    return f"{function}_kernel_by_kernel"


def by_shape(function: str) -> str:
    """An entry that is recorded for each shape of its inputs, beside one that is not.

    It takes the memory of its tensors before the weights, a tensor for each of
    :func:`part_sizes`.
    """
    return f"{function}_by_shape"


def part_sizes(function: str) -> str:
    """A function from the inputs of :func:`by_shape` to the sizes of the memory it takes."""
    return f"{function}_part_sizes"


KERNEL_BY_KERNEL = kernel_by_kernel(ALL)


@dataclass(frozen=True)
class Entry:
    """A function that runs some models of an artifact.

    Attributes
    ----------
    function : str
        Its name, where launches are recorded.
    inputs, outputs : tuple[int, ...]
        What it takes and returns, by position among those of the artifact.
    """

    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def stage_name(number: int, device: int) -> str:
    """The function of a stage of ``main``, and the device, of a model's, that it runs on."""
    return f"main_stage_{number}_on_device_{device}"


Main = Callable[..., list[tvm.runtime.Tensor]]
"""A model's entry; what it returns is listed."""

# How the virtual machine and kernels refuse an argument.
_OTHER_ARGUMENTS = (f"Invoking function {ALL}", "when calling:")

# How a kernel's assertion begins (tvm_edge.schedules.emit.require).
_REFUSED = "the inputs' values do not fit: "


def entry(machine: VirtualMachine, name: str = ALL) -> Main:
    """An entry, and what its checks of types and shapes raise as errors of ours.

    Raises
    ------
    ArtifactError
        The code has no such function.
    """
    if not machine.module.implements_function(name):
        raise ArtifactError(
            f"the code of this model has no function {name!r}, which its manifest names; "
            "export it again"
        )
    main = machine[name]
    other = (*_OTHER_ARGUMENTS, f"fn={name}, loc=param")

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
            if any(sign in reason for sign in other):
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
