"""Text before OpenCL sources that use an instruction of a vendor's."""

from __future__ import annotations

from collections.abc import Mapping

from tvm_edge.schedules.gpu.dot_products import PTX_DP4A

__all__ = ["with_extensions"]

_EXTENSION = "#pragma OPENCL EXTENSION {} : enable\n"

_NEEDED: Mapping[str, str] = {
    "arm_dot_acc": _EXTENSION.format("cl_arm_integer_dot_product_accumulate_int8"),
    "dot_4x8packed_ss_int": _EXTENSION.format("cl_khr_integer_dot_product"),
    "qcom_dot8_acc": _EXTENSION.format("cl_qcom_dot_product8"),
    PTX_DP4A: f"""\
static inline int {PTX_DP4A}(int a, int b, int total) {{
  int sum;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(total));
  return sum;
}}
""",
}


def with_extensions(source: str) -> str:
    """Return the source of one kernel after what the functions that it calls need.

    Examples
    --------
    ``__kernel void f(…) { … qcom_dot8_acc(a, b, c) … }`` comes after
    ``#pragma OPENCL EXTENSION cl_qcom_dot_product8 : enable``.
    """
    needed = [text for function, text in _NEEDED.items() if f"{function}(" in source]
    return "".join([*needed, source])
