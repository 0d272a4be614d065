"""Names in compiled code: what the compiler writes there, and the native runtime calls.

``tvm_edge/native/csrc/entry.h`` has them too; a test holds both together.
"""

from __future__ import annotations

__all__ = [
    "ALL",
    "KERNEL_BY_KERNEL",
    "NEXT_PART",
    "RECORDING",
    "RESULT",
    "UNALIGNED",
    "UPLOAD_PART",
    "by_shape",
    "function_of",
    "kernel_by_kernel",
    "part_sizes",
    "stage_name",
]

ALL = "main"
"""The entry that runs all models of an artifact."""

UNALIGNED = "unaligned_inputs"
"""A function that tells, as a shape, which inputs kernels of the CPU read wherever they begin."""

# Names whose calls TVM's pass for CUDA graphs does not record: vm.builtin's.
NEXT_PART = "vm.builtin.tvm_edge.next_part"
"""``(part, following, before, after) -> part``: a CPU kernel is about to read `part`.

`following` is the part that is wanted next, `before` the one that is not any more; `after`, if it
is given, is a result of the kernel that read that one.
"""

UPLOAD_PART = "vm.builtin.tvm_edge.upload_part"
""":data:`NEXT_PART` for a kernel of another device, which the result is on."""

RECORDING = "vm.builtin.tvm_edge.recording"
"""``(last) -> None``: the run that calls this is about to record a CUDA graph.

`last` says that whatever its entry has to record it will have recorded when it ends.
"""

RESULT = "vm.builtin.tvm_edge.result"
"""``(place, shape, dtype) -> tensor``: memory for a result of the CPU, by its place in ``main``."""


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


def stage_name(number: int, device: int) -> str:
    """The function of a stage of ``main``, and the device, of a model's, that it runs on."""
    return f"main_stage_{number}_on_device_{device}"
