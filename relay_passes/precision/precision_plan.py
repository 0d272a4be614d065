"""Plan of a graph's precision: lower types of operators, and those that results are read in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
from tvm import relax, tirx

from tvm_edge.ops.registry import of_call
from tvm_edge.relay_passes.ir.expressions import bindings_of, constant_of
from tvm_edge.relay_passes.ir.vdevices import vdevice_of
from tvm_edge.relay_passes.place.label_operators import node_indices
from tvm_edge.schedules.float16 import HALVES

__all__ = ["PrecisionPlan", "is_float32", "is_product"]

_LIMITS = {name: ml_dtypes.finfo(dtype) for name, dtype in HALVES.items()}


class PrecisionPlan:
    """Types of the bindings of a function, and of those that read them.

    A product is, unless something speaks against it; an operator that may follow is where all that
    it reads is float16 and its result leads to a product. What leads to none (decoding of boxes,
    softmax, logits) keeps the digits of the last product's float32 accumulators.

    Parameters
    ----------
    func : relax.Function
        ``main``, operators not legalised yet.
    kind : str
        Kind of the device that has the lower type.
    exceptions : mapping of int to str
        Nodes of the user's model that stay float32, and why.
    dtype : {"float16", "bfloat16"}
        The lower type.

    Attributes
    ----------
    lowered : set of Var
        Bindings that become `dtype`.
    wanted : dict of Var to set of str
        The types in which a tensor of float32 is read.
    tuples : dict of Var to Tuple
        Who reads one of these reads its fields.
    """

    def __init__(
        self,
        func: relax.Function,
        kind: str,
        exceptions: Mapping[int, str],
        dtype: str = "float16",
    ) -> None:
        self.dtype = dtype
        self._kind, self._exceptions = kind, exceptions
        self._bindings = bindings_of(func)
        variables = [binding.var for binding in self._bindings]
        self._node = dict(zip(variables, node_indices(func), strict=True))
        self.tuples = {b.var: b.value for b in self._bindings if isinstance(b.value, relax.Tuple)}
        self._whole = _read_whole(self._bindings, func.body.body)
        self.lowered: set[relax.Var] = set()
        self.wanted: dict[relax.Var, set[str]] = {}
        self._reasons: dict[relax.Var, str] = {}
        self._unfit: set[relax.Var] = set()
        between = self._between()
        for binding in self._bindings:
            if self._is_lowered(binding, between):
                self.lowered.add(binding.var)
        for binding in self._bindings:
            dtype = self.dtype if binding.var in self.lowered else "float32"
            if binding.var not in self.tuples:
                self._want(binding.value, dtype)
        self._want(func.body.body, "float32")

    def _want(self, value: relax.Expr, dtype: str) -> None:
        for var in self._read(value):
            self.wanted.setdefault(var, set()).add(dtype)

    def _read(self, value: relax.Expr) -> list[relax.Var]:
        """Return the float32 tensors that an expression reads."""
        found = []
        for var in relax.analysis.free_vars(value):
            if var in self.tuples:
                found += self._read(self.tuples[var])
            elif is_float32(var.ty):
                found.append(var)
        return found

    def _between(self) -> set[relax.Var]:
        """Return the tensors that lead to a product, by operators that may be lowered."""
        found: set[relax.Var] = set()
        for binding in reversed(self._bindings):
            value = binding.value
            moves = not isinstance(value, relax.Call) or self._may_follow(binding)
            if self._is_lowered_product(binding) or (binding.var in found and moves):
                found.update(self._read(value))
        return found

    def _is_lowered_product(self, binding: relax.Binding) -> bool:
        return is_product(binding.value) and not self._objection(binding)

    def _may_follow(self, binding: relax.Binding) -> bool:
        """Return whether a binding is lowered where all that it reads is."""
        how = of_call(binding.value).float16
        return how is not None and not how.is_product and not self._objection(binding)

    def _objection(self, binding: relax.Binding) -> str:
        """Return why a call of such an operator stays float32; empty if it does not."""
        if binding.var not in self._reasons:
            self._reasons[binding.var] = self._asked(binding)
        return self._reasons[binding.var]

    def _asked(self, binding: relax.Binding) -> str:
        call, var = binding.value, binding.var
        if not is_float32(var.ty):
            return "it is not float32"
        if any(not is_float32(arg.ty) and _is_float(arg.ty) for arg in call.args):
            return "its operands are of several types"
        device = vdevice_of(var.ty)
        if device is not None and device.target.kind.name != self._kind:
            return f"it runs on {device.target.kind.name}"
        node = self._node[var]
        if node in self._exceptions:
            return self._exceptions[node]
        if isinstance(var.ty, relax.TupleType) and var in self._whole:
            return "its results are used together"
        if call.op.name == "relax.divide" and constant_of(call.args[1]) is None:
            return "it divides by what is computed"
        unfit = _unfit_number(call, self.dtype)
        if unfit:
            self._unfit.add(var)
        return unfit

    def _is_lowered(self, binding: relax.Binding, between: set[relax.Var]) -> bool:
        if self._is_lowered_product(binding):
            return True
        if isinstance(binding, relax.MatchCast) or not is_float32(binding.var.ty):
            return False
        value = binding.value
        if isinstance(value, relax.Var | relax.TupleGetItem):
            return all(var in self.lowered for var in relax.analysis.free_vars(value))
        if binding.var not in between or not self._may_follow(binding):
            return False
        read = self._read(value)
        return bool(read) and all(var in self.lowered for var in read)

    def of_nodes(self) -> tuple[dict[int, str], dict[int, str], dict[int, str]]:
        """Return types, reasons against the lower type, and those about constants, by node."""
        types: dict[int, str] = {}
        reasons: dict[int, str] = {}
        unfit: dict[int, str] = {}
        of_product: set[int] = set()
        for binding in self._bindings:
            var, node = binding.var, self._node[binding.var]
            if node is None or not is_float32(var.ty) or not isinstance(binding.value, relax.Call):
                continue
            # A node of several steps is what its product is, or its last step.
            product = is_product(binding.value)
            if product or node not in of_product:
                types[node] = self.dtype if var in self.lowered else "float32"
            if product:
                of_product.add(node)
            if self._reasons.get(var):
                reasons[node] = self._reasons[var]
            if var in self._unfit:
                unfit[node] = self._reasons[var]
        reasons = {node: reason for node, reason in reasons.items() if types[node] == "float32"}
        return types, reasons, unfit


def _read_whole(bindings: Sequence[relax.Binding], result: relax.Expr) -> set[relax.Var]:
    """Return the variables that are read otherwise than field by field."""
    readers = [b.value for b in bindings if not isinstance(b.value, relax.TupleGetItem)]
    return {var for value in (*readers, result) for var in relax.analysis.free_vars(value)}


def is_product(value: relax.Expr) -> bool:
    """Return whether an operator is worth a conversion of its operands to 16 bits."""
    how = of_call(value).float16
    return how is not None and how.is_product


def is_float32(ty: relax.Type) -> bool:
    """Return whether a type is of one tensor of float32, or of several."""
    if isinstance(ty, relax.TupleType):
        return len(ty.fields) > 0 and all(map(is_float32, ty.fields))
    return isinstance(ty, relax.TensorType) and str(ty.dtype) == "float32"


def _is_float(ty: relax.Type) -> bool:
    return isinstance(ty, relax.TensorType) and str(ty.dtype).startswith(("float", "bfloat"))


def _unfit_number(call: relax.Call, dtype: str) -> str:
    """Say which number in a call `dtype` cannot hold; empty if there is none."""
    limits = _LIMITS[dtype]
    most, least = float(limits.max), float(limits.smallest_normal)
    bounds = [float(arg.value) for arg in call.args if isinstance(arg, tirx.FloatImm)]
    if call.op.name == "relax.nn.pad":
        bounds.append(float(call.attrs.pad_value))
    for bound in bounds:
        if np.isfinite(bound) and abs(bound) > most:
            return f"its bound {bound:.3g} is beyond {dtype}, which ends at {most:.6g}"
    for arg in call.args:
        value = constant_of(arg)
        if value is None or value.dtype != np.float32 or not value.size:
            continue
        largest = float(np.abs(value[np.isfinite(value)]).max(initial=0.0))
        if largest > most:
            return f"a constant of it holds {largest:.3g}, and {dtype} ends at {most:.6g}"
        if 0 < largest < least:
            return f"a constant of it is below {largest:.3g}, where {dtype} loses its digits"
    return ""
