"""Constants become items of one tuple parameter, each once."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tvm_edge.relay_passes.memory.lift_weights import WEIGHTS_PARAM, LiftWeights


def module_with(*constants: relax.Expr) -> tvm.IRModule:
    """``x + c0 + c1 + …``."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for constant in constants:
                value = builder.emit(relax.op.add(value, constant))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def test_each_constant_becomes_one_item() -> None:
    first = relax.const(np.arange(4, dtype="float32"))
    second = relax.const(np.ones(4, "float32"))
    lift = LiftWeights()
    lifted = lift(module_with(first, second, first))
    assert [w.value.numpy().tolist() for w in lift.weights] == [[0, 1, 2, 3], [1, 1, 1, 1]]
    main = lifted["main"]
    assert [p.name for p in main.params] == ["x", WEIGHTS_PARAM]
    assert len(main.params[1].ty.fields) == 2
    assert "GenericConst" not in lifted.script()
    machine = relax.VirtualMachine(relax.build(lifted, "llvm"), tvm.cpu())
    result = machine["main"](
        tvm.runtime.tensor(np.zeros(4, "float32")), tuple(w.value for w in lift.weights)
    )
    assert result.numpy().tolist() == [1, 3, 5, 7]


def test_a_module_without_constants_takes_an_empty_tuple() -> None:
    lift = LiftWeights()
    lifted = lift(module_with())
    assert lift.weights == []
    machine = relax.VirtualMachine(relax.build(lifted, "llvm"), tvm.cpu())
    assert machine["main"](tvm.runtime.tensor(np.ones(4, "float32")), ()).numpy().sum() == 4
