"""Let the OpenCL runtime record what TVM's pass prepared for CUDA graphs."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.relay_passes.ir.expressions import rewrite_functions

__all__ = ["RecordOnOpenCL"]

_OURS = {
    "vm.builtin.cuda_graph.run_or_capture": "tvm_edge.opencl.run_or_capture",
    "vm.builtin.cuda_graph.get_cached_alloc": "tvm_edge.opencl.get_cached_alloc",
}


@tvm.transform.module_pass(opt_level=0, name="RecordOnOpenCL")
class RecordOnOpenCL:
    """Call the OpenCL runtime where ``RewriteCUDAGraph`` calls the CUDA runtime.

    The regions that TVM's pass finds are as good for command buffers: kernels of static shapes over
    memory that stays where it is. The runtime decides whether it records
    (``tvm_edge/opencl/csrc/recorded_region.h``).
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, _Renamer(mod).visit_expr)


@mutator
class _Renamer(PyExprMutator):
    def visit_extern_func_(self, op: relax.ExternFunc) -> relax.Expr:
        ours = _OURS.get(str(op.global_symbol))
        return relax.ExternFunc(ours) if ours else op
