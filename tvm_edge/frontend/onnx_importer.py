"""TVM's importer of ONNX graphs, with converters of ours asked first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from tvm_edge.frontend.limits import refuse_indices
from tvm_edge.frontend.loop_import import alike, as_declared, convert_loop, is_scalar_for
from tvm_edge.frontend.onnx_costs import small_tensors, tensor_infos
from tvm_edge.frontend.onnx_edges import reads
from tvm_edge.frontend.onnx_functions import label
from tvm_edge.frontend.shape_arithmetic import ARITHMETIC, LARGEST, evaluate, shape_elements
from tvm_edge.ops.common_lengths import BROADCAST, joined, with_common_lengths
from tvm_edge.ops.control import refuse
from tvm_edge.ops.converter import type_name
from tvm_edge.ops.elements import Elements, length_tensor, read_by_host
from tvm_edge.ops.registry import find
from tvm_edge.ops.small_types import SMALL_TYPES, STORED_AS
from tvm_edge.ops.types import refuse_types
from tvm_edge.relay_passes.ir.expressions import constant_of, static_shape
from tvm_edge.report import TensorSpec

__all__ = ["Importer", "is_not_implemented", "reason_of"]

_NOT_IMPLEMENTED = (
    NotImplementedError,
    tvm.error.OpNotImplemented,
    tvm.error.OpAttributeInvalid,
    tvm.error.OpAttributeUnImplemented,
)

# Converters also refuse what they do not implement by ValueError and AssertionError.
_SAYS_NOT_IMPLEMENTED = re.compile(
    r"not (yet )?support|unsupported|only .*support|not implement", re.I
)

# Names of our own: TVM's own way with an If, which is not asked for, executes both of its branches.
_IF, _LOOP = "tvm_edge.If", "tvm_edge.Loop"
_CONTROL = {"then_branch": _IF, "body": _LOOP}

# They look at the shape or the type of what they get, or copy it; or add up what there is.
_OF_ANY_SIZE = frozenset(
    {"Cast", "CastLike", "Concat", "Gemm", _IF, _LOOP, "Identity", "MatMul", "Pad", "Shape", "Size"}
)

# Without indices they return their first operand.
_WRITES = frozenset({"Scatter", "ScatterElements", "ScatterND"})

# Of nothing they find nothing.
_FINDS = frozenset({"NonMaxSuppression", "NonZero"})

_OF_ANY_RANK = frozenset({_IF, _LOOP, "Identity"})


class Importer(ONNXGraphImporter):
    """TVM's importer that asks our converters first and remembers the results of nodes."""

    def __init__(self, proto: onnx.ModelProto, inputs: Sequence[TensorSpec]) -> None:
        dims = {dim.name: tirx.Var(dim.name, "int64") for spec in inputs for dim in spec.dims}
        # TVM takes a length of 0 for one that is not known.
        shapes = {
            spec.name: [dims[d] if isinstance(d, str) else d for d in spec.shape] for spec in inputs
        }
        self._nodes: dict[str, relax.Expr] = {}
        super().__init__(shape_dict=shapes, dtype_dict=None)
        self.proto = proto
        self.results: dict[relax.Var, int] = {}
        self.small: list[tuple[str, ...]] = []
        self.made: list[list[str]] = []
        self.names: list[str] = []
        self.converting = ("", "")
        self.notes: list[str] = []
        self.elements: dict[relax.Expr, Elements] = {}
        self.lengths: list[tuple[tirx.Expr, tirx.Var]] = []
        self.inside = 0
        self.states = 0

    def from_onnx(self, graph: onnx.GraphProto, opset: int) -> tvm.IRModule:
        for node in graph.node:
            if node.op_type == "Loop":
                node.op_type = "If"  # TVM puts dataflow around what has none
        return super().from_onnx(graph, opset)

    def _new_var(self, var_name: str, shape: list, dtype: str = "float32") -> relax.Var:
        return super()._new_var(var_name, shape, STORED_AS if dtype in SMALL_TYPES else dtype)

    def _parse_attr(self, attr_proto: Iterable[onnx.AttributeProto]) -> dict[str, Any]:
        # Lists without elements, which TVM takes for no attributes at all.
        lists = (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS)
        empty = {a.name: () for a in attr_proto if a.type in lists and not (a.ints or a.floats)}
        rest = [attribute for attribute in attr_proto if attribute.name not in empty]
        return {**super()._parse_attr(rest), **empty}

    def _parse_array(self, tensor_proto: onnx.TensorProto) -> tvm.runtime.Tensor:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor_proto.data_type)
        if dtype.name not in SMALL_TYPES:
            return super()._parse_array(tensor_proto)
        return tvm.runtime.tensor(onnx.numpy_helper.to_array(tensor_proto).view(STORED_AS))

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        for name, value in self._inputs.items():
            if _has_no_elements(value):  # then its value is known
                self._nodes[name] = _nothing(value)
        kinds = small_tensors(self.proto)
        self.small = [
            tuple(kinds.get(name, "") for name in node.input) if kinds else ()
            for node in graph.node
        ]
        self.made = [list(node.output) for node in graph.node]
        self.names = [node.name for node in graph.node]
        # Names may repeat and need not be identifiers: number the nodes instead.
        for index, node in enumerate(graph.node):
            node.name = f"n{index}"
            node.op_type = self._label(node)
        super()._construct_nodes(graph)

    def _label(self, node: onnx.NodeProto) -> str:
        """Return the name of a node's converter: the importer looks at no domain."""
        bodies = (_CONTROL.get(attribute.name) for attribute in node.attribute)
        return next(filter(None, bodies), label(node))

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Do nothing: refuse_unsupported has looked, and knows converters that TVM does not."""

    def _convert_operator(
        self, op_name: str, inputs: list[relax.Expr], attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        given = attrs["tvm_custom"]["name"]
        index = None if self.inside else int(given.removeprefix("n"))  # those in branches have none
        name = given if index is None else self.names[index]
        self.converting = (op_name.removeprefix("tvm_edge."), name)
        own = {
            **attrs,
            "opset": opset,
            "small_types": self.small[index] if index is not None else (),
        }
        if op_name not in _OF_ANY_RANK and any(_is_of_any_rank(value) for value in inputs):
            raise NotImplementedError("a tensor of a rank that only the run tells")
        refuse_types(op_name, inputs, own)
        refuse_indices(op_name, inputs, attrs)
        own["elements"] = [self.elements.get(value) for value in inputs]
        known = self._evaluated(op_name, inputs, own)
        result = self._calculated(known) if known is not None else None
        if op_name == _IF:
            result = self._choice(inputs[0], own, name)
        elif op_name == _LOOP:
            result = self._loop(inputs, attrs["body"], name)
        if result is None:
            result = self._of_nothing(op_name, inputs, own, index)
        if result is None and op_name in BROADCAST:
            inputs[:] = with_common_lengths(self.bb, inputs)
        elif result is None and op_name == "Concat":
            inputs[:] = joined(self.bb, inputs, int(attrs.get("axis", 1)))
        convert = find(op_name).convert
        if result is None and convert is not None:
            result = convert(self.bb, inputs, own)
        if result is None:
            result = super()._convert_operator(op_name, inputs, attrs, opset)
        if op_name not in (_IF, _LOOP):
            result = self._bound(result)
        if attrs["tvm_custom"]["num_outputs"] > 1 and not isinstance(result, relax.Tuple):
            result = relax.Tuple(self._fields(result))
        if known is not None:
            fields = result.fields if isinstance(result, relax.Tuple) else [result]
            self.elements.update(zip(fields, known, strict=True))
        if index is None:
            return result
        for value in result.fields if isinstance(result, relax.Tuple) else [result]:
            if isinstance(value, relax.Var):
                self.results.setdefault(value, index)
        return result

    def _evaluated(
        self, op_name: str, inputs: list[relax.Expr], attrs: dict[str, Any]
    ) -> list[Elements] | None:
        """Evaluate arithmetic on shapes, as far as the operands are known."""
        if op_name in ("Shape", "Size"):
            return shape_elements(op_name, inputs[0], attrs)
        if op_name not in ARITHMETIC:
            return None
        known = []
        for value in inputs:
            constant = None if value is None else constant_of(value)
            if value is None or value in self.elements:
                known.append(self.elements.get(value))
            elif constant is None or constant.size > LARGEST:
                return None
            else:
                known.append(Elements.of(constant.astype(object), str(value.ty.dtype)))
        return evaluate(op_name, known, attrs)

    def _calculated(self, known: list[Elements]) -> relax.Expr | None:
        """Make tensors of elements; of fractions of lengths kernels are as good."""
        if any(each.numbers is None and "float" in each.dtype for each in known):
            return None
        made = []
        for each in known:
            numbers = each.numbers
            if numbers is not None:
                made.append(relax.const(numbers, each.dtype))
            else:
                values = list(each.values.flat)
                made.append(length_tensor(self.bb, values, each.values.shape, each.dtype))
        return made[0] if len(made) == 1 else relax.Tuple(made)

    def _of_nothing(
        self, op_name: str, inputs: list[relax.Expr], attrs: dict[str, Any], index: int | None
    ) -> relax.Expr | None:
        """Return the result for data without elements, which no kernel is called for."""
        none = [value for value in inputs if _has_no_elements(value)]
        if op_name == "Concat" and len(inputs) > 1:
            axis = int(attrs.get("axis", 0))
            kept = [each for each in inputs if 0 not in (static_shape(each.ty) or (1,))[axis:][:1]]
            inputs[:] = kept or inputs[:1]
            if len(kept) == 1:
                return kept[0]
        if not none:
            return None
        if op_name in _WRITES and _has_no_elements(inputs[1]):
            return inputs[0]
        if op_name in _FINDS:
            shape = (inputs[0].ty.ndim, 0) if op_name == "NonZero" else (0, 3)
            return relax.const(np.zeros(shape, "int64"), "int64")
        tensors = tensor_infos(self.proto)
        known = [tensors.get(name) for name in self.made[index]] if index is not None else []
        if not known or any(info is None or info.elements != 0 for info in known):
            empty = inputs[0] is not None and _has_no_elements(inputs[0])
            if (
                index is None
                or not empty
                or op_name in _OF_ANY_SIZE
                or op_name.startswith("Reduce")
            ):
                return None
            raise NotImplementedError(f"{op_name} of a tensor without elements")
        results = [
            relax.const(
                np.zeros(info.shape or (), _stored_type(info.dtype)), _stored_type(info.dtype)
            )
            for info in known
            if info is not None
        ]
        return results[0] if len(results) == 1 else relax.Tuple(results)

    def _choice(self, condition: relax.Expr, attrs: dict[str, Any], name: str) -> relax.Expr:
        """Convert an If: the branch that is known to be taken, or both, each by itself."""
        branches = (attrs["then_branch"], attrs["else_branch"])
        known = self.elements.get(condition)
        chosen = constant_of(condition) if known is None else known.numbers
        if chosen is not None:
            taken = branches[0] if chosen.reshape(-1)[0] else branches[1]
            return self._convert_subgraph(self.bb, taken)
        if condition.ty.ndim:
            condition = self.bb.emit(relax.op.reshape(condition, ()))
        bodies: list[relax.SeqExpr | None] = []
        problems = []
        for branch in branches:
            try:
                bodies.append(self._branch(partial(self._convert_subgraph, self.bb, branch)))
            except Exception as err:  # as from_onnx: whatever comes up inside a converter
                if is_not_implemented(err):
                    raise
                bodies.append(None)
                problems.append(err)
        if len(problems) == len(branches):
            raise problems[0]
        if problems:
            (good,) = (body for body in bodies if body is not None)
            what = f"a branch of the If {name!r}, which does not fit the model's shapes"
            self.notes.append(f"a run ends that takes {what}: {reason_of(problems[0])}")
            refused = [refuse(ty, what, condition) for ty in _types(good.body)]
            made = self._branch(lambda: self._made(refused))
            bodies = [made if body is None else body for body in bodies]
        else:
            types = [_types(body.body) for body in bodies if body is not None]
            for i, other in enumerate(reversed(types)):
                if any(is_scalar_for(*pair) for pair in zip(types[i], other, strict=True)):
                    bodies[i] = self._branch(partial(self._widened, branches[i], other))
        self.converting = ("If", name)
        result = self.bb.emit(relax.If(condition, *bodies))
        if not isinstance(result.ty, relax.TupleType):
            return self._measured(result, result.ty)
        return relax.Tuple(self._fields(result))

    def _loop(self, inputs: list[relax.Expr], body: onnx.GraphProto, name: str) -> relax.Expr:
        """Convert a Loop: a step that stands for all of them."""
        formal = [value.name for value in body.input]
        counts = any(formal[0] in reads(node) for node in body.node)

        def convert(actual: Sequence[relax.Expr]) -> list[relax.Expr]:
            outside = dict(self._nodes)
            if counts:  # rows and slices are made by it: what lies between two is known, then
                number = read_by_host(self.bb, self.bb.emit(relax.op.reshape(actual[0], (1,))))
                self.elements[actual[0]] = Elements.of(number[0], "int64")
            self._nodes.update(zip(formal, actual, strict=True))
            try:
                result = self._convert_subgraph(self.bb, body)
            finally:
                self._nodes = outside
            fields = _fields_of(result)
            collected = len(inputs) - 1  # behind the condition and the states
            rows = zip(fields[collected:], body.output[collected:], strict=True)
            return [*fields[:collected], *(as_declared(self.bb, *pair) for pair in rows)]

        anything = next(iter(self._inputs.values()))
        value, types = convert_loop(
            self.bb, self._branch, convert, inputs, anything, first=self.states
        )
        self.states += len(types)
        self.converting = ("Loop", name)
        results = self._fields(self.bb.emit(value), types)[2:]
        return results[0] if len(results) == 1 else relax.Tuple(results)

    def _fields(
        self, whole: relax.Var, types: Sequence[relax.Type] | None = None
    ) -> list[relax.Var]:
        types = types or whole.ty.fields
        items = [self.bb.emit(relax.TupleGetItem(whole, i)) for i in range(len(types))]
        return [self._measured(*pair) for pair in zip(items, types, strict=True)]

    def _branch(self, convert: Callable[[], relax.Expr]) -> relax.SeqExpr:
        """Collect the bindings of a branch; none of its values is known after it."""
        known, lengths = dict(self.elements), list(self.lengths)
        self.inside += 1
        self.bb._begin_binding_block()
        try:
            result = convert()
            if not isinstance(result, relax.Tuple):
                result = self.bb.emit(result)
        finally:
            block = self.bb._end_block()
            self.elements, self.lengths = known, lengths
            self.inside -= 1
        return relax.SeqExpr([block], result)

    def _widened(self, branch: onnx.GraphProto, types: list[relax.Type]) -> relax.Expr:
        """Convert a branch to vectors of one element where the other one has them, not scalars."""
        values = _fields_of(self._convert_subgraph(self.bb, branch))
        return self._made([alike(self.bb, *pair) for pair in zip(values, types, strict=True)])

    def _made(self, values: list[relax.Expr]) -> relax.Expr:
        bound = [self.bb.emit(value) for value in values]
        return bound[0] if len(bound) == 1 else relax.Tuple(bound)

    def _measured(self, value: relax.Var, expected: relax.Type) -> relax.Var:
        """Name the lengths that the branches do not have in common."""
        ty = value.ty
        if not isinstance(ty, relax.TensorType) or ty.shape is not None or expected.ndim < 0:
            return value
        lengths = [tirx.Var(f"length{axis}", "int64") for axis in range(expected.ndim)]
        shape = static_shape(expected) if ty.ndim < 0 else None
        return self.bb.match_cast(value, relax.TensorType(shape or lengths, ty.dtype))

    def _convert_subgraph(self, bb: relax.BlockBuilder, graph: onnx.GraphProto) -> relax.Expr:
        own = onnx.GraphProto()
        own.CopyFrom(graph)  # a body of a Loop is converted again for other shapes
        for node in own.node:
            node.op_type = self._label(node)
        return super()._convert_subgraph(bb, own)

    def _bound(self, result: relax.Expr) -> relax.Expr:
        """Bind what a converter returns to variables, and tensors without elements to none."""
        if isinstance(result, relax.Tuple):
            return relax.Tuple([self._bound(field) for field in result.fields])
        if isinstance(result, (relax.Call, relax.TupleGetItem)):
            result = self.bb.emit(result)
        if not isinstance(result, relax.Var):
            return result
        return _nothing(result) if _has_no_elements(result) else self._shortened(result)

    def _shortened(self, value: relax.Var) -> relax.Var:
        """Name lengths made of several others: a kernel takes each that its shapes are made of.

        The same expression gets the same name, so that what has the same length is known to.
        """
        ty = value.ty
        if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
            return value
        shape = [self._named_length(length) for length in ty.shape.values]
        if all(a.same_as(b) for a, b in zip(shape, ty.shape.values, strict=True)):
            return value
        # A match_cast, which says the same, would be taken back by CanonicalizeBindings.
        return self.bb.emit(relax.op.reshape(value, shape))

    def _named_length(self, length: tirx.Expr) -> tirx.Expr:
        if len(tirx.analysis.undefined_vars(length)) < 2:
            return length
        for known, name in self.lengths:
            if tvm_ffi.structural_equal(known, length):
                return name
        name = read_by_host(self.bb, length_tensor(self.bb, [length], (1,), "int64"))[0]
        self.lengths.append((length, name))
        return name


def _fields_of(value: relax.Expr) -> list[relax.Expr]:
    return list(value.fields) if isinstance(value, relax.Tuple) else [value]


def _types(value: relax.Expr) -> list[relax.Type]:
    return [field.ty for field in _fields_of(value)]


def reason_of(err: Exception) -> str:
    """Return the last line of an error, which is TVM's own; those before it are its stack."""
    return (str(err).strip().splitlines() or [type(err).__name__])[-1][:300]


def is_not_implemented(err: Exception) -> bool:
    """Return whether a converter refuses an operator for want of an implementation."""
    return isinstance(err, _NOT_IMPLEMENTED) or bool(_SAYS_NOT_IMPLEMENTED.search(reason_of(err)))


def _is_of_any_rank(value: relax.Expr | None) -> bool:
    ty = getattr(value, "ty", None)
    return isinstance(ty, relax.TensorType) and ty.ndim < 0


def _has_no_elements(value: relax.Expr | None) -> bool:
    ty = getattr(value, "ty", None)
    return isinstance(ty, relax.TensorType) and 0 in (static_shape(ty) or ())


def _nothing(value: relax.Expr) -> relax.Expr:
    """Make the only value that a tensor without elements can have."""
    dtype = str(value.ty.dtype)
    return relax.const(np.zeros(static_shape(value.ty) or (), dtype), dtype)


def _stored_type(number: int) -> str:
    """Return the type in which the code has tensors of an ONNX type."""
    name = type_name(number)
    return STORED_AS if name in SMALL_TYPES else name
