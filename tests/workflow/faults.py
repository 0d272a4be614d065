"""Faults planted in the compiler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_edge.compiler import driver
from tvm_edge.compiler.passes import Pipeline
from tvm_edge.relay_passes.ir.expressions import const, constant_of
from tvm_edge.schedules import cpu


def in_kernel(monkeypatch: pytest.MonkeyPatch, rule: str, line: str = "") -> None:
    """Leave out the lower bound of activations in kernels of a rule, after they are scheduled.

    Parameters
    ----------
    rule : str
    line : str
        What such a kernel has in its TVMScript.
    """
    original = cpu.schedule

    def schedule(func: tirx.PrimFunc, spec: Any) -> Any:
        scheduled = original(func, spec)
        if scheduled.rule != rule or line not in func.script():
            return scheduled
        return replace(scheduled, func=_unbounded(scheduled.func))

    monkeypatch.setattr(cpu, "schedule", schedule)


def _unbounded(func: tirx.PrimFunc) -> tirx.PrimFunc:
    def bound(choice: tirx.Select) -> Any:
        return choice.false_value if isinstance(choice.condition, tirx.LT) else choice

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Select, bound)))


@mutator
class _Louder(PyExprMutator):
    """Changes the filters of a module."""

    def visit_generic_const_(self, op: tvm.ir.GenericConst) -> relax.Expr:
        value = constant_of(op)
        if value is None or value.ndim < 4 or value.size < 1000:
            return op
        return const(value * 1.5, "float32")


def in_pass(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Change the filters that a pass leaves behind."""

    def changed(module: tvm.IRModule) -> tvm.IRModule:
        gvar = module.get_global_var("main")
        changer = _Louder(module)
        changer.builder_.update_func(gvar, changer.visit_expr(module[gvar]))
        return changer.builder_.get()

    def faulty(each: Any) -> Any:
        def apply(c: Any) -> Any:
            done = each.apply(c)
            return replace(done, module=changed(done.module))

        return replace(each, apply=apply)

    passes = (faulty(p) if p.name == name else p for p in driver.PIPELINE.passes)
    monkeypatch.setattr(driver, "PIPELINE", Pipeline(tuple(passes)))
