"""Random ONNX models: small, of many operators, valid or nearly so.

Two sources. ONNX's own operator tests, about 1900, hold every operator in many forms; here some of
their inputs become constants, since compilers treat constants apart. And graphs of one to six
operators drawn one by one, with random shapes (ranks 0 to 5, sometimes a length of 0), types and
attributes, so that operators meet in combinations that no test has.
"""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz.mutations import mutate_bytes, mutate_model

__all__ = ["operator_tests", "random_file", "random_graph"]

_FLOAT = (TensorProto.FLOAT,) * 12 + (TensorProto.DOUBLE, TensorProto.FLOAT16)
_INT = (
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.INT8,
    TensorProto.UINT8,
)
_ANY = _FLOAT + _INT + (TensorProto.BOOL,)
_LARGEST_SEED = 40_000  # bytes; a finding should fit into the corpus


def random_file(seed: int, with_tests: bool = True) -> bytes:
    """A model file, a third of them undamaged.

    Collecting ONNX's operator tests takes some seconds, which `with_tests` says to spend.
    """
    rng = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = with_constants(rng) if with_tests and rng.random() < 0.5 else random_graph(rng)
        chance = rng.random()
        if chance < 0.35:
            return model.SerializeToString()
        content = mutate_model(model, rng.getrandbits(32))
        if chance > 0.95:
            content = mutate_bytes(content, rng.getrandbits(32))
    return content


@functools.cache
def operator_tests() -> tuple[tuple[onnx.ModelProto, tuple[Any, ...]], ...]:
    """ONNX's operator tests as models, each with its inputs."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    return tuple(
        (case.model, tuple(case.data_sets[0][0]))
        for case in cases
        if case.model.ByteSize() < _LARGEST_SEED
    )


def with_constants(rng: random.Random) -> onnx.ModelProto:
    """An operator test, with some inputs made constants."""
    tested, inputs = rng.choice(operator_tests())
    model = onnx.ModelProto()
    model.CopyFrom(tested)
    chance = rng.choice((0.0, 0.3, 0.6, 1.0))
    for value, array in list(zip(model.graph.input, inputs, strict=False))[rng.random() < 0.7 :]:
        if isinstance(array, np.ndarray) and rng.random() < chance and array.size < 4000:
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
            model.graph.input.remove(value)
    return model


class _Graph:
    """A model in the making."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.opset = rng.choice((*range(1, 24), 9, 11, 13, 13, 17, 17, 17, 18, 21))
        self.inputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.values: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.rng.choice((0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 5)) if rank is None else rank
        lengths = (1, 1, 2, 3, 4, 5, 7, 8, 16, 17)
        shape = [self.rng.choice(lengths[:6] if rank > 3 else lengths) for _ in range(rank)]
        if shape and self.rng.random() < 0.02:
            shape[self.rng.randrange(rank)] = 0
        return tuple(shape)

    def new(self, kind: int, shape: tuple[int, ...], constant: bool = False) -> str:
        name = self.name()
        if constant or (self.inputs and self.rng.random() < 0.4):
            return self.constant(self.random(kind, shape), name)
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        self.values[name] = (kind, shape)
        return name

    def random(self, kind: int, shape: tuple[int, ...]) -> np.ndarray:
        generator = np.random.default_rng(self.rng.getrandbits(32))
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        if dtype.kind == "f":
            value = np.asarray(generator.standard_normal(shape)).astype(dtype)
            if value.size and self.rng.random() < 0.05:
                value.reshape(-1)[0] = self.rng.choice((np.nan, np.inf, -np.inf, 0))
            return value
        return np.asarray(generator.integers(0, 4, shape)).astype(dtype)

    def constant(self, value: Any, name: str = "") -> str:
        name = name or self.name()
        array = np.asarray(value)
        self.weights.append(numpy_helper.from_array(array, name))
        self.values[name] = (helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        return name

    def pick(self, kinds: tuple[int, ...] = _ANY, ranks: tuple[int, ...] = ()) -> str:
        """A value of one of the types and ranks: one there is, or a new one."""
        there = [
            name
            for name, (kind, shape) in self.values.items()
            if kind in kinds and (not ranks or len(shape) in ranks)
        ]
        if there and self.rng.random() < 0.8:
            return self.rng.choice(there[-4:])
        return self.new(self.rng.choice(kinds), self.shape(self.rng.choice(ranks or (None,))))

    def like(self, name: str) -> str:
        """A value that broadcasts against another."""
        kind, shape = self.values[name]
        there = [n for n, value in self.values.items() if value == (kind, shape)]
        if self.rng.random() < 0.4:
            return self.rng.choice(there)
        lengths = tuple(1 if self.rng.random() < 0.3 else d for d in shape)
        return self.new(kind, lengths[self.rng.randrange(len(lengths) + 1) :])

    def axis(self, name: str) -> int:
        rank = len(self.values[name][1])
        return self.rng.randrange(-rank, rank) if rank else self.rng.choice((0, -1))

    def axes(self, name: str) -> list[int]:
        rank = len(self.values[name][1])
        chosen = self.rng.sample(range(rank), self.rng.randint(0, rank))
        return [a - rank if self.rng.random() < 0.3 else a for a in chosen]

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "fuzz",
            self.inputs,
            [onnx.ValueInfoProto(name=name) for name in outputs],
            self.weights,
        )
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)

    def add(self, node: onnx.NodeProto) -> bool:
        """Append a node unless shape inference refuses it, or it makes something large."""
        self.nodes.append(node)
        try:
            inferred = onnx.shape_inference.infer_shapes(
                self.model(list(node.output)), strict_mode=True
            )
        except Exception:  # whatever inference raises: the node does not fit
            self.nodes.pop()
            return False
        for value in inferred.graph.output:
            tensor = value.type.tensor_type
            dims = tuple(d.dim_value for d in tensor.shape.dim)
            known = all(d.HasField("dim_value") for d in tensor.shape.dim)
            if tensor.HasField("shape") and known and np.prod(dims, dtype=float) < 1e5:
                self.values[value.name] = (tensor.elem_type, dims)
        return True


def random_graph(rng: random.Random) -> onnx.ModelProto:
    """One to six operators."""
    graph = _Graph(rng)
    wanted = rng.choice((1, 1, 2, 3, 4, 6))
    for _ in range(4 * wanted):
        try:
            node = rng.choice(_RECIPES)(graph)
        # Nothing fits what there is, or the operator set is older than the operator.
        except (ValueError, IndexError, ZeroDivisionError, onnx.defs.SchemaError):
            continue
        graph.add(node)
        if len(graph.nodes) >= wanted:
            break
    if not graph.nodes:
        x = graph.pick(_FLOAT)
        graph.add(helper.make_node("Identity", [x], [graph.name()]))
    used = {name for node in graph.nodes for name in node.input}
    ends = [n for node in graph.nodes for n in node.output if n and n not in used]
    if rng.random() < 0.2:
        ends = [name for node in graph.nodes for name in node.output if name]
    rng.shuffle(ends)
    graph.inputs = [v for v in graph.inputs if v.name in used or rng.random() < 0.1]
    model = graph.model(ends or list(graph.nodes[-1].output))
    try:
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except Exception:
        return model


Recipe = Callable[[_Graph], onnx.NodeProto]
_RECIPES: list[Recipe] = []


def _recipe(function: Recipe) -> Recipe:
    _RECIPES.append(function)
    return function


def _node(g: _Graph, op: str, inputs: list[str], outputs: int = 1, **attrs: Any) -> onnx.NodeProto:
    given = {key: value for key, value in attrs.items() if value is not None}
    return helper.make_node(op, inputs, [g.name() for _ in range(outputs)], **given)


def _maybe(g: _Graph, value: Any, chance: float = 0.5) -> Any:
    return value if g.rng.random() < chance else None


def _ints(g: _Graph, value: list[int]) -> str:
    """A constant, mostly; sometimes known at run time only."""
    if g.rng.random() < 0.05:
        return g.new(TensorProto.INT64, (len(value),))
    return g.constant(np.asarray(value, "int64"))


@_recipe
def _unary(g: _Graph) -> onnx.NodeProto:
    op = g.rng.choice(
        "Abs Neg Sqrt Exp Log Floor Ceil Round Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh "
        "Acosh Atanh Sigmoid Relu Erf Sign Reciprocal Softplus Softsign IsNaN IsInf Identity "
        "HardSwish Mish Not BitwiseNot Selu Elu LeakyRelu HardSigmoid ThresholdedRelu Celu Gelu "
        "Shrink Swish".split()
    )
    kinds = {"Not": (TensorProto.BOOL,), "BitwiseNot": _INT}.get(op, _FLOAT)
    if op in ("Abs", "Neg", "Sign", "Relu", "Identity"):
        kinds = _FLOAT + _INT
    alpha = g.rng.choice((None, 0.0, 0.3, -1.0, 2.0, float("inf")))
    if op not in "Selu Elu LeakyRelu HardSigmoid ThresholdedRelu Celu".split():
        alpha = None
    return _node(g, op, [g.pick(kinds)], alpha=alpha)


@_recipe
def _binary(g: _Graph) -> onnx.NodeProto:
    op = g.rng.choice(
        "Add Sub Mul Div Pow Mod Less LessOrEqual Greater GreaterOrEqual Equal And Or Xor "
        "BitwiseAnd BitwiseOr BitwiseXor BitShift PRelu Max Min Sum Mean".split()
    )
    kinds = _FLOAT + _INT
    if op in ("And", "Or", "Xor"):
        kinds = (TensorProto.BOOL,)
    elif op.startswith("Bit"):
        kinds = (*_INT, TensorProto.UINT32, TensorProto.UINT64)
    a = g.pick(kinds)
    inputs = [a, g.like(a)]
    if op in ("Max", "Min", "Sum", "Mean"):
        inputs = [a, *(g.like(a) for _ in range(g.rng.randrange(4)))]
    elif op not in ("PRelu", "BitShift", "Mod", "Pow") and g.rng.random() < 0.5:
        inputs.reverse()
    extra: dict[str, Any] = {}
    if op == "BitShift":
        extra["direction"] = g.rng.choice(("LEFT", "RIGHT"))
    if op == "Mod":
        extra["fmod"] = g.rng.choice((None, 1, 1))
    return _node(g, op, inputs, **extra)


@_recipe
def _where(g: _Graph) -> onnx.NodeProto:
    a = g.pick()
    shape = g.values[a][1]
    return _node(g, "Where", [g.new(TensorProto.BOOL, shape), a, g.like(a)])


@_recipe
def _clip(g: _Graph) -> onnx.NodeProto:
    x = g.pick(_FLOAT + _INT)
    if g.opset < 11:
        return _node(g, "Clip", [x], min=_maybe(g, -0.5), max=_maybe(g, 0.5))
    dtype = helper.tensor_dtype_to_np_dtype(g.values[x][0])
    bounds = [
        g.constant(np.asarray(b).astype(dtype)) if g.rng.random() < 0.7 else "" for b in (1, 2)
    ]
    return _node(g, "Clip", [x, *bounds])


@_recipe
def _cast(g: _Graph) -> onnx.NodeProto:
    if g.rng.random() < 0.2:
        return _node(g, "CastLike", [g.pick(), g.pick()])
    return _node(g, "Cast", [g.pick()], to=g.rng.choice(range(1, 17)))


@_recipe
def _reduce(g: _Graph) -> onnx.NodeProto:
    op = "Reduce" + g.rng.choice("Sum Mean Max Min Prod L1 L2 LogSum LogSumExp SumSquare".split())
    x = g.pick(_FLOAT + _INT)
    keep = g.rng.choice((None, 0, 1))
    if g.opset >= 18 or (op == "ReduceSum" and g.opset >= 13):
        inputs = [x, _ints(g, g.axes(x))] if g.rng.random() < 0.7 else [x]
        empty = g.rng.choice((None, 0, 1))
        return _node(g, op, inputs, keepdims=keep, noop_with_empty_axes=empty)
    return _node(g, op, [x], axes=g.axes(x) or None, keepdims=keep)


@_recipe
def _arg(g: _Graph) -> onnx.NodeProto:
    x = g.pick(_FLOAT + _INT)
    last = g.rng.choice((None, 0, 1)) if g.opset >= 12 else None
    op = g.rng.choice(("ArgMax", "ArgMin"))
    return _node(
        g, op, [x], axis=_maybe(g, g.axis(x)), keepdims=_maybe(g, 0), select_last_index=last
    )


@_recipe
def _top_k(g: _Graph) -> onnx.NodeProto:
    x = g.pick(_FLOAT + _INT, (1, 2, 3, 4))
    k, axis = g.rng.choice((0, 1, 2, 3, 5)), _maybe(g, g.axis(x))
    if g.opset < 10:
        return _node(g, "TopK", [x], 2, axis=axis, k=k)
    largest = g.rng.choice((None, 0, 1)) if g.opset >= 11 else None
    return _node(g, "TopK", [x, _ints(g, [k])], 2, axis=axis, largest=largest)


@_recipe
def _soft(g: _Graph) -> onnx.NodeProto:
    x = g.pick(_FLOAT)
    op = g.rng.choice(("Softmax", "LogSoftmax", "Hardmax", "Flatten"))
    return _node(g, op, [x], axis=_maybe(g, g.axis(x), 0.8))


@_recipe
def _cum_sum(g: _Graph) -> onnx.NodeProto:
    x = g.pick(_FLOAT + _INT)
    axis = g.constant(np.asarray(g.axis(x), g.rng.choice(("int32", "int64"))))
    flags = {"exclusive": _maybe(g, 1), "reverse": _maybe(g, 1)}
    return _node(g, g.rng.choice(("CumSum", "CumSum", "CumProd")), [x, axis], **flags)


@_recipe
def _reshape(g: _Graph) -> onnx.NodeProto:
    x = g.pick()
    shape = list(g.values[x][1])
    g.rng.shuffle(shape)
    size = int(np.prod(shape))
    target = g.rng.choice(
        (shape, [-1], [size], [1, -1], [0, -1], [size, 1, 1], [], [-1, 2], [2, -1, 1], [1, 0, -1])
    )
    zero = _maybe(g, 1, 0.1) if g.opset >= 14 else None
    if g.opset < 5:
        return _node(g, "Reshape", [x], shape=target or None)
    return _node(g, "Reshape", [x, _ints(g, target)], allowzero=zero)


@_recipe
def _transpose(g: _Graph) -> onnx.NodeProto:
    x = g.pick()
    order = list(range(len(g.values[x][1])))
    g.rng.shuffle(order)
    return _node(g, "Transpose", [x], perm=_maybe(g, order, 0.8) or None)


@_recipe
def _squeeze(g: _Graph) -> onnx.NodeProto:
    x = g.pick()
    op = g.rng.choice(("Squeeze", "Unsqueeze"))
    shape = g.values[x][1]
    axes = [i for i, d in enumerate(shape) if d == 1]
    if op == "Unsqueeze":
        rank = len(shape) + g.rng.choice((1, 1, 2))
        axes = g.rng.sample(range(-rank, rank), rank - len(shape))
    if g.opset >= 13:
        return _node(g, op, [x, _ints(g, axes)] if axes or op == "Unsqueeze" else [x])
    return _node(g, op, [x], axes=axes or None)


@_recipe
def _concat(g: _Graph) -> onnx.NodeProto:
    x = g.pick()
    kind, shape = g.values[x]
    axis = g.axis(x)
    parts = [x]
    for _ in range(g.rng.choice((0, 1, 1, 2, 4))):
        other = list(shape)
        other[axis] = g.rng.choice((1, 2, 3, shape[axis]))
        parts.append(g.new(kind, tuple(other)))
    return _node(g, "Concat", parts, axis=axis)


@_recipe
def _split(g: _Graph) -> onnx.NodeProto:
    x = g.pick()
    axis, shape = g.axis(x), g.values[x][1]
    first = g.rng.randint(0, shape[axis])
    sizes = [first, shape[axis] - first]
    if g.rng.random() < 0.3:
        parts = g.rng.choice((1, 2, 3))
        count = {"num_outputs": parts} if g.opset >= 18 else {}
        return _node(g, "Split", [x], parts, axis=axis, **count)
    if g.opset >= 13:
        return _node(g, "Split", [x, _ints(g, sizes)], 2, axis=axis)
    return _node(g, "Split", [x], 2, axis=axis, split=sizes)


@_recipe
def _slice(g: _Graph) -> onnx.NodeProto:
    x = g.pick()
    shape = g.values[x][1]
    axes = g.axes(x) or [0]
    starts = [g.rng.choice((0, 1, -1, 2, -3, 100, -100, 2**62)) for _ in axes]
    ends = [g.rng.choice((0, 1, -1, 3, 100, 2**31 - 1, 2**63 - 1, -(2**63))) for _ in axes]
    steps = [g.rng.choice((1, 1, 1, 2, -1, -2, 3, 2**40)) for _ in axes]
    if g.opset < 10:
        return _node(g, "Slice", [x], starts=starts, ends=ends, axes=axes)
    inputs = [x, _ints(g, starts), _ints(g, ends)]
    if g.rng.random() < 0.8 or len(axes) != len(shape):
        inputs.append(_ints(g, axes))
        if g.rng.random() < 0.7:
            inputs.append(_ints(g, steps))
    return _node(g, "Slice", inputs)


@_recipe
def _pad(g: _Graph) -> onnx.NodeProto:
    x = g.pick(_FLOAT + _INT)
    mode = g.rng.choice((None, "constant", "reflect", "edge", "wrap"))
    rank = len(g.values[x][1])
    pads = [g.rng.choice((0, 0, 1, 2, -1, 5)) for _ in range(2 * rank)]
    if g.opset < 11:
        return _node(g, "Pad", [x], mode=mode, pads=pads, value=_maybe(g, 1.5))
    inputs = [x, _ints(g, pads)]
    if g.rng.random() < 0.4:
        dtype = helper.tensor_dtype_to_np_dtype(g.values[x][0])
        inputs.append(g.constant(np.asarray(3, dtype)))
    return _node(g, "Pad", inputs, mode=mode)


@_recipe
def _grow(g: _Graph) -> onnx.NodeProto:
    x = g.pick()
    rank = len(g.values[x][1])
    if g.rng.random() < 0.5:
        return _node(g, "Tile", [x, _ints(g, [g.rng.choice((0, 1, 1, 2, 3)) for _ in range(rank)])])
    shape = [d if d != 1 or g.rng.random() < 0.5 else 3 for d in g.values[x][1]]
    front = [g.rng.choice((1, 2))] if g.rng.random() < 0.4 else []
    return _node(g, "Expand", [x, _ints(g, [*front, *shape])])


@_recipe
def _gather(g: _Graph) -> onnx.NodeProto:
    x = g.pick()
    op = g.rng.choice(("Gather", "Gather", "GatherElements", "GatherND"))
    shape, axis = g.values[x][1], g.axis(x)
    length = shape[axis]
    generator = np.random.default_rng(g.rng.getrandbits(32))
    if op == "GatherND":
        depth = g.rng.randint(1, len(shape))
        value = np.stack([generator.integers(-d, d, (3,)) for d in shape[:depth]], -1)
        return _node(g, op, [x, g.constant(value)])
    wanted = shape if op == "GatherElements" else g.shape(g.rng.choice((0, 1, 2)))
    value = np.asarray(generator.integers(-length, length, wanted))
    if value.size and g.rng.random() < 0.05:
        value.reshape(-1)[0] = g.rng.choice((length, -length - 1, 2**62, -(2**63)))
    if g.rng.random() < 0.7:
        value = value.astype(g.rng.choice(("int32", "int64")))
        return _node(g, op, [x, g.constant(value)], axis=axis)
    return _node(g, op, [x, g.new(TensorProto.INT64, value.shape)], axis=axis)


@_recipe
def _scatter(g: _Graph) -> onnx.NodeProto:
    x = g.pick(_FLOAT + _INT)
    kind, shape = g.values[x]
    axis = g.axis(x)
    generator = np.random.default_rng(g.rng.getrandbits(32))
    reduction = None
    if g.opset >= 16:
        reduction = g.rng.choice((None, "none", "add", "mul", "max", "min"))
    if g.rng.random() < 0.4:
        value = np.stack([generator.integers(-d, d, (2,)) for d in shape[:1]], -1)
        updates = g.new(kind, (2, *shape[1:]))
        return _node(g, "ScatterND", [x, g.constant(value), updates], reduction=reduction)
    value = np.asarray(generator.integers(-shape[axis], shape[axis], shape))
    if value.size and g.rng.random() < 0.1:
        value.reshape(-1)[0] = g.rng.choice((shape[axis], -shape[axis] - 1, 2**62, -(2**63)))
    updates = g.new(kind, value.shape)
    indices = g.constant(value) if g.rng.random() < 0.8 else g.new(TensorProto.INT64, value.shape)
    op = "Scatter" if g.opset < 11 else "ScatterElements"
    return _node(g, op, [x, indices, updates], axis=axis, reduction=reduction)


@_recipe
def _conv(g: _Graph) -> onnx.NodeProto:
    space = g.rng.choice((1, 2, 2, 2, 3))
    x = g.pick(_FLOAT, (space + 2,))
    kind, shape = g.values[x]
    channels = shape[1]
    groups = g.rng.choice([n for n in (1, 1, 2, 3, channels) if n and channels % n == 0])
    kernel = [g.rng.choice((1, 1, 2, 3, 3, 5)) for _ in range(space)]
    out = groups * g.rng.choice((1, 2, 4))
    transposed = g.rng.random() < 0.3
    weight = (
        (channels, out // groups, *kernel) if transposed else (out, channels // groups, *kernel)
    )
    inputs = [x, g.new(kind, weight, g.rng.random() < 0.8)]
    if g.rng.random() < 0.5:
        inputs.append(g.new(kind, (out,), True))
    extra: dict[str, Any] = {}
    if transposed and g.rng.random() < 0.3:
        extra["output_padding"] = [g.rng.choice((0, 1)) for _ in range(space)]
    op = "ConvTranspose" if transposed else "Conv"
    return _node(g, op, inputs, **_window(g, space, kernel), group=groups, **extra)


def _window(g: _Graph, space: int, kernel: list[int]) -> dict[str, Any]:
    attrs: dict[str, Any] = {"kernel_shape": _maybe(g, kernel)}
    if g.rng.random() < 0.4:
        attrs["strides"] = [g.rng.choice((1, 2, 3)) for _ in range(space)]
    if g.rng.random() < 0.25:
        attrs["dilations"] = [g.rng.choice((1, 2)) for _ in range(space)]
    match g.rng.randrange(4):
        case 0:
            attrs["auto_pad"] = g.rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
        case 1 | 2:
            attrs["pads"] = [g.rng.choice((0, 1, 1, 2)) for _ in range(2 * space)]
    return attrs


@_recipe
def _pool(g: _Graph) -> onnx.NodeProto:
    space = g.rng.choice((1, 2, 2, 2, 3))
    x = g.pick(_FLOAT, (space + 2,))
    op = g.rng.choice(("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"))
    if op.startswith("Global"):
        return _node(g, op, [x])
    kernel = [g.rng.choice((1, 2, 3)) for _ in range(space)]
    attrs = {**_window(g, space, kernel), "kernel_shape": kernel}
    if g.opset < 10 or (op == "AveragePool" and g.opset < 19):
        attrs.pop("dilations", None)
    if g.opset >= 10:
        attrs["ceil_mode"] = _maybe(g, 1, 0.3)
    if op == "AveragePool" and g.opset >= 7:
        attrs["count_include_pad"] = _maybe(g, 1, 0.4)
    if op == "LpPool":
        attrs["p"] = g.rng.choice((None, 1, 2, 3))
    return _node(g, op, [x], 2 if op == "MaxPool" and g.rng.random() < 0.2 else 1, **attrs)


@_recipe
def _normalise(g: _Graph) -> onnx.NodeProto:
    op = g.rng.choice(
        "BatchNormalization InstanceNormalization LRN GroupNormalization LayerNormalization "
        "LpNormalization MeanVarianceNormalization RMSNormalization".split()
    )
    x = g.pick(_FLOAT, (2, 3, 4, 5))
    kind, shape = g.values[x]
    channel = (shape[1],)
    epsilon = g.rng.choice((None, 1e-3, 0.0))
    if op == "BatchNormalization":
        parts = [g.new(kind, channel, g.rng.random() < 0.8) for _ in range(3)]
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        return _node(g, op, [x, *parts, g.constant(np.ones(channel, dtype))], epsilon=epsilon)
    if op == "InstanceNormalization":
        return _node(g, op, [x, g.new(kind, channel), g.new(kind, channel)], epsilon=epsilon)
    if op == "LRN":
        return _node(g, op, [x], size=g.rng.choice((1, 2, 3, 5, 9)))
    if op == "GroupNormalization":
        groups = g.rng.choice([n for n in (1, 2, 3, channel[0]) if n and channel[0] % n == 0])
        length = channel if g.opset >= 21 else (groups,)
        parts = [g.new(kind, length), g.new(kind, length)]
        return _node(g, op, [x, *parts], num_groups=groups, epsilon=epsilon)
    if op in ("LayerNormalization", "RMSNormalization"):
        axis = g.axis(x)
        parts = [g.new(kind, shape[axis:])]
        if op[0] == "L" and g.rng.random() < 0.5:
            parts.append(g.new(kind, shape[axis:]))
        return _node(g, op, [x, *parts], axis=axis, epsilon=epsilon)
    if op == "LpNormalization":
        return _node(g, op, [x], axis=g.axis(x), p=g.rng.choice((1, 2)))
    return _node(g, op, [x], axes=g.axes(x) or None)


@_recipe
def _matmul(g: _Graph) -> onnx.NodeProto:
    x = g.pick((*_FLOAT, TensorProto.INT32), (1, 2, 2, 3, 4))
    kind, shape = g.values[x]
    columns = g.rng.choice((1, 2, 5, 16))
    if g.rng.random() < 0.5 and len(shape) == 2:
        swap_a, swap_b = g.rng.random() < 0.3, g.rng.random() < 0.5
        inner = shape[0] if swap_a else shape[1]
        inputs = [x, g.new(kind, (columns, inner) if swap_b else (inner, columns))]
        if g.rng.random() < 0.6:
            inputs.append(g.new(kind, g.rng.choice(((columns,), (1,), (), (1, columns)))))
        flags = {"alpha": _maybe(g, 0.5, 0.3), "beta": _maybe(g, 2.0, 0.3)}
        return _node(g, "Gemm", inputs, transA=int(swap_a), transB=int(swap_b), **flags)
    other = g.rng.choice(((shape[-1],), (shape[-1], columns), (*shape[:-2], shape[-1], columns)))
    return _node(g, "MatMul", [x, g.new(kind, other)])


@_recipe
def _resize(g: _Graph) -> onnx.NodeProto:
    x = g.pick(_FLOAT, (3, 4, 4, 4, 5))
    shape = g.values[x][1]
    scales = [1.0, 1.0, *(g.rng.choice((0.5, 1.0, 1.5, 2.0, 2.6)) for _ in shape[2:])]
    mode = g.rng.choice(("nearest", "linear", "cubic"))
    if g.opset < 10:
        if g.opset < 9:
            return _node(g, "Upsample", [x], mode=mode, scales=scales)
        return _node(g, "Upsample", [x, g.constant(np.float32(scales))], mode=mode)
    if g.opset < 11:
        return _node(g, "Resize", [x, g.constant(np.float32(scales))], mode=mode)
    attrs = {
        "mode": mode,
        "coordinate_transformation_mode": g.rng.choice(
            (None, "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
        ),
        "nearest_mode": g.rng.choice((None, "floor", "ceil", "round_prefer_ceil")),
        "antialias": _maybe(g, 1, 0.1) if g.opset >= 18 else None,
        "exclude_outside": _maybe(g, 1, 0.1),
    }
    roi = "" if g.opset >= 13 else g.constant(np.zeros(0, "float32"))
    if g.rng.random() < 0.5:
        return _node(g, "Resize", [x, roi, g.constant(np.float32(scales))], **attrs)
    sizes = [*shape[:2], *(g.rng.choice((1, 3, 8)) for _ in shape[2:])]
    return _node(g, "Resize", [x, roi, "", _ints(g, sizes)], **attrs)


@_recipe
def _sample(g: _Graph) -> onnx.NodeProto:
    x = g.pick(_FLOAT, (4,))
    kind, shape = g.values[x]
    if g.rng.random() < 0.5:
        boxes = g.new(kind, (2, 4))
        index = g.constant(np.zeros(2, "int64"))
        return _node(g, "RoiAlign", [x, boxes, index], output_height=g.rng.choice((None, 2)))
    grid = g.new(kind, (shape[0], 3, 2, 2))
    mode = g.rng.choice((None, "bilinear" if g.opset < 20 else "linear", "nearest"))
    padding = g.rng.choice((None, "zeros", "border", "reflection"))
    return _node(
        g, "GridSample", [x, grid], mode=mode, padding_mode=padding, align_corners=_maybe(g, 1)
    )


@_recipe
def _blocks(g: _Graph) -> onnx.NodeProto:
    x = g.pick(_FLOAT, (4,))
    op = g.rng.choice(("DepthToSpace", "SpaceToDepth"))
    return _node(g, op, [x], blocksize=g.rng.choice((1, 2, 2, 3)))


@_recipe
def _made(g: _Graph) -> onnx.NodeProto:
    match g.rng.randrange(6):
        case 0:
            value = helper.make_tensor("v", TensorProto.FLOAT, [1], [2.0])
            shape = _ints(g, list(g.shape()))
            return _node(g, "ConstantOfShape", [shape], value=_maybe(g, value))
        case 1:
            limits = [g.constant(np.int64(v)) for v in (0, g.rng.choice((3, 0, -3)), 1)]
            return _node(g, "Range", limits)
        case 2:
            return _node(g, "EyeLike", [g.pick(_FLOAT, (2,))], k=g.rng.choice((None, 1, -2, 9)))
        case 3:
            return _node(g, g.rng.choice(("Shape", "Size")), [g.pick()])
        case 4:
            x = g.pick((TensorProto.INT64,))
            depth, values = g.constant(np.int64(5)), g.constant(np.float32([0, 1]))
            return _node(g, "OneHot", [x, depth, values], axis=g.axis(x))
        case _:
            return _node(g, "Trilu", [g.pick(_FLOAT, (2, 3))], upper=_maybe(g, 0))


@_recipe
def _data_dependent(g: _Graph) -> onnx.NodeProto:
    match g.rng.randrange(4):
        case 0:
            return _node(g, "NonZero", [g.pick()])
        case 1:
            return _node(g, "Unique", [g.pick(_FLOAT)], sorted=_maybe(g, 0))
        case 2:
            x = g.pick()
            length = g.values[x][1][0]
            return _node(g, "Compress", [x, g.new(TensorProto.BOOL, (length,))], axis=0)
        case _:
            boxes = g.new(TensorProto.FLOAT, (1, 6, 4))
            scores = g.new(TensorProto.FLOAT, (1, 2, 6))
            limits = [g.constant(np.int64([3])), g.constant(np.float32([0.5]))]
            return _node(g, "NonMaxSuppression", [boxes, scores, *limits])


@_recipe
def _quantise(g: _Graph) -> onnx.NodeProto:
    match g.rng.randrange(4):
        case 0:
            x = g.pick((TensorProto.FLOAT,))
            scale = g.constant(np.float32(0.1))
            zero = [g.constant(np.asarray(3, g.rng.choice(("int8", "uint8"))))]
            return _node(g, "QuantizeLinear", [x, scale, *(zero if g.rng.random() < 0.7 else [])])
        case 1:
            x = g.pick((TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32))
            return _node(g, "DequantizeLinear", [x, g.constant(np.float32(0.1))])
        case 2:
            return _node(g, "DynamicQuantizeLinear", [g.pick((TensorProto.FLOAT,))], 3)
        case _:
            a = g.pick((TensorProto.INT8, TensorProto.UINT8), (2,))
            inner = g.values[a][1][1]
            b = g.new(g.rng.choice((TensorProto.INT8, TensorProto.UINT8)), (inner, 3))
            return _node(g, "MatMulInteger", [a, b])


@_recipe
def _einsum(g: _Graph) -> onnx.NodeProto:
    x = g.pick(_FLOAT, (2,))
    kind, shape = g.values[x]
    equation = g.rng.choice(("ij->ji", "ij->", "ij", "ii->i", "...j->...", "ij,jk->ik", "ij,ij->i"))
    inputs = [x]
    if "," in equation:
        inputs.append(g.new(kind, (shape[1], 3) if "jk" in equation else shape))
    return _node(g, "Einsum", inputs, equation=equation)


@_recipe
def _if(g: _Graph) -> onnx.NodeProto:
    x = g.pick(_FLOAT)
    branches = []
    for op in g.rng.choices(("Relu", "Neg", "Exp", "Identity"), k=2):
        out = g.name()
        body = helper.make_node(op, [x], [out])
        value = helper.make_tensor_value_info(out, *g.values[x])
        branches.append(helper.make_graph([body], "branch", [], [value]))
    condition = g.new(TensorProto.BOOL, g.rng.choice(((), (1,))))
    return _node(g, "If", [condition], then_branch=branches[0], else_branch=branches[1])


@_recipe
def _sequence(g: _Graph) -> onnx.NodeProto:
    x = g.pick(_FLOAT)
    return _node(g, g.rng.choice(("SequenceConstruct", "SplitToSequence", "Optional")), [x])


@_recipe
def _constant(g: _Graph) -> onnx.NodeProto:
    value = numpy_helper.from_array(g.random(g.rng.choice(_FLOAT), g.shape()))
    return _node(g, "Constant", [], value=value)


@_recipe
def _any(g: _Graph) -> onnx.NodeProto:
    """Any operator at all, with inputs as its schema wants them and attributes as they come."""
    schema = onnx.defs.get_schema(g.rng.choice(_SCHEMAS), g.opset)
    inputs = [g.pick() for _ in range(g.rng.randint(schema.min_input, min(schema.max_input, 5)))]
    attrs = {}
    for name, attribute in schema.attributes.items():
        if attribute.required or g.rng.random() < 0.2:
            kinds: dict[str, Any] = {"INT": 1, "FLOAT": 0.5, "INTS": [1, 1], "STRING": "linear"}
            attrs[name] = kinds.get(str(attribute.type).rpartition(".")[2])
    return _node(g, schema.name, inputs, max(schema.min_output, 1), **attrs)


_SCHEMAS = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""})
