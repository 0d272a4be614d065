"""Places in a module where calls of kernels replace an operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import relax, te, tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.emit import Kernel
from tvm_edge.schedules.open_lengths import length_of

__all__ = ["KernelSite", "is_empty"]

# Relax's OpPatternKind: element-wise kernels may follow in the same one.
_OUT_ELEMENTWISE_FUSABLE = 4


@dataclass(frozen=True)
class KernelSite:
    """The place of one operator.

    Attributes
    ----------
    builder : relax.BlockBuilder
        Takes the calls that the operator becomes.
    device : relax.VDevice or None
        Device of the operands; ``None`` in a module for one device.
    spec : DeviceSpec
        That device.
    precision : {"float32", "tf32"}
        To which float32 may be rounded in products.
    configs : mapping of ConvWorkload to ConvConfig
        Measured algorithms and knobs of convolutions.
    chooser : DeviceSpec or None
        The device that algorithms are chosen for, where it is not `spec`: kernels with smaller
        work-groups have to read the same weights, packed alike.
    """

    builder: relax.BlockBuilder
    device: relax.VDevice | None
    spec: DeviceSpec
    precision: str = "float32"
    configs: Mapping[ConvWorkload, ConvConfig] = field(default_factory=dict)
    chooser: DeviceSpec | None = None

    def tensor(self, shape: Sequence[Any], dtype: str) -> relax.TensorType:
        """Return the type of a tensor on this device."""
        return relax.TensorType(list(shape), dtype, self.device)

    def emit(self, value: relax.Expr) -> relax.Var:
        """Bind a value."""
        return self.builder.emit(value)

    def call(
        self,
        func: tirx.PrimFunc,
        name: str,
        args: Sequence[relax.Expr],
        results: Sequence[relax.TensorType],
    ) -> list[relax.Var]:
        """Call a kernel; return its results."""
        made = self.emit(self.unbound(func, name, args, results))
        if len(results) == 1:
            return [made]
        return [self.emit(relax.TupleGetItem(made, i)) for i in range(len(results))]

    def unbound(
        self,
        func: tirx.PrimFunc,
        name: str,
        args: Sequence[relax.Expr],
        results: Sequence[relax.TensorType],
    ) -> relax.Call:
        """Make the call itself: as the operator's value it can be fused with others."""
        func = func.without_attr("global_symbol")  # the module names it
        if self.device is not None:
            func = func.with_attr("target", self.device.target)
        gvar = self.builder.add_func(func, name)
        types = list(results)
        return relax.call_tir(gvar, list(args), types[0] if len(types) == 1 else types)

    def fusable(
        self, func: tirx.PrimFunc, name: str, args: Sequence[relax.Expr], result: te.Tensor
    ) -> relax.Call:
        """Make a call of a kernel that element-wise ones may be fused with."""
        func = func.with_attr("op_pattern", _OUT_ELEMENTWISE_FUSABLE)
        ty = self.tensor(list(map(length_of, result.shape)), str(result.dtype))
        return self.unbound(func, name, args, [ty])

    def run(self, kernel: Kernel, name: str, args: Sequence[relax.Expr]) -> list[relax.Var]:
        """Call a kernel of static shapes; return its results, workspace included."""
        types = [self.tensor(shape, dtype) for shape, dtype in kernel.outputs]
        return self.call(kernel.func, name, args, types)

    def reshape(self, value: relax.Expr, shape: Sequence[Any]) -> relax.Var:
        """Return a view of another shape."""
        return self.emit(relax.op.reshape(value, list(shape)))

    def zeros(self, shape: Sequence[Any], dtype: str) -> relax.Expr:
        """Make a constant on this device; the way to a tensor without elements."""
        zeros = self.emit(relax.op.zeros(tuple(shape), dtype))
        if self.device is None:
            return zeros
        return self.emit(relax.op.to_vdevice(zeros, self.device))


def is_empty(shape: Sequence[Any]) -> bool:
    """Return whether a dimension is known to be zero."""
    return any(isinstance(dim, tirx.IntImm | int) and int(dim) == 0 for dim in shape)
