"""Seeded damage to valid files."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import onnx
from onnx import AttributeProto, TensorProto, helper

__all__ = ["mutate_bytes", "mutate_model"]

_INTERESTING = (0, 1, -1, -2, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, float("nan"), float("inf"), -float("inf"), 1e38, 1e-45)
_NAMES = ("", " ", "nowhere", "a.b/c:0", "ünïcode", "0", "x" * 3000, "a\0b", "main", "n0", "\u202e")


def mutate_bytes(content: bytes, seed: int) -> bytes:
    """Flip, overwrite, cut, repeat or insert bytes in one to four places."""
    rng = random.Random(seed)
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data)) if data else 0
        length = rng.choice((1, 1, 2, 4, 16, 200))
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = bytes([data[at] ^ (1 << rng.randrange(8))]) if data else b""
            case 1:
                data[at : at + length] = rng.randbytes(length)
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = data[at : at + length]
            case 4:
                data[at:at] = rng.randbytes(length)
            case _:
                del data[at:]
    return bytes(data)


def mutate_model(model: onnx.ModelProto, seed: int) -> bytes:
    """Change one to three fields of a model to values that parse and may make no sense."""
    rng = random.Random(seed)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        graph = rng.choice([copy.graph, copy.graph, *_subgraphs(copy.graph)])
        rng.choice(_MUTATIONS)(rng, copy, graph)
    return copy.SerializeToString()


Mutation = Callable[[random.Random, onnx.ModelProto, onnx.GraphProto], None]
_MUTATIONS: list[Mutation] = []


def _mutation(weight: int) -> Callable[[Mutation], Mutation]:
    def add(function: Mutation) -> Mutation:
        _MUTATIONS.extend([function] * weight)
        return function

    return add


@_mutation(6)
def _attribute_value(rng: random.Random, _model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    attribute = _attribute(rng, graph)
    if attribute is None:
        return
    match attribute.type:
        case AttributeProto.INTS if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_INTERESTING)
        case AttributeProto.FLOAT:
            attribute.f = rng.choice(_FLOATS)
        case AttributeProto.FLOATS if attribute.floats:
            attribute.floats[rng.randrange(len(attribute.floats))] = rng.choice(_FLOATS)
        case AttributeProto.STRING:
            attribute.s = rng.choice((b"", b"\xff\xfe", b"linear", b"SAME_UPPER", b"NOTSET", b"ij"))
        case AttributeProto.TENSOR:
            _damage_tensor(rng, attribute.t)
        case _:
            attribute.i = rng.choice(_INTERESTING)


@_mutation(2)
def _attribute_length(rng: random.Random, _model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    attribute = _attribute(rng, graph)
    if attribute is None:
        return
    values = list(attribute.ints)
    if rng.random() < 0.5:
        del attribute.ints[: rng.randint(1, 2)]
    else:
        attribute.ints.extend([*values, rng.choice(_INTERESTING)][: rng.randint(1, 4)])


@_mutation(2)
def _attribute_type(rng: random.Random, _model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    attribute = _attribute(rng, graph)
    if attribute is None:
        return
    if rng.random() < 0.5:
        attribute.type = rng.randrange(0, 15)
    else:
        name = attribute.name
        attribute.CopyFrom(
            helper.make_attribute(name, rng.choice((1, 1.5, "s", [1], [2.5], ["t"])))
        )


@_mutation(2)
def _attribute_gone(rng: random.Random, _model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    node = _node(rng, graph)
    if node is not None and node.attribute:
        at = rng.randrange(len(node.attribute))
        if rng.random() < 0.2:
            node.attribute.append(node.attribute[at])
        else:
            del node.attribute[at]


@_mutation(2)
def _operator(rng: random.Random, model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    node = _node(rng, graph)
    if node is None:
        return
    if rng.random() < 0.8:
        node.op_type = rng.choice([*_OPERATORS, rng.choice(model.graph.node).op_type])
    else:
        node.domain = rng.choice(("com.microsoft", "ai.onnx", "ai.onnx.ml", "x"))


@_mutation(4)
def _input(rng: random.Random, model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    node = _node(rng, graph)
    if node is None or not node.input:
        return
    at = rng.randrange(len(node.input))
    match rng.randrange(4):
        case 0:
            del node.input[at]
        case 1:
            node.input.insert(at, rng.choice(_names(model)))
        case _:
            node.input[at] = rng.choice(_names(model))


@_mutation(1)
def _output(rng: random.Random, model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    node = _node(rng, graph)
    if node is None:
        return
    match rng.randrange(3):
        case 0 if node.output:
            node.output[rng.randrange(len(node.output))] = rng.choice((*_names(model), *_NAMES))
        case 1 if node.output:
            del node.output[-1]
        case _:
            node.output.append(rng.choice(("extra", "", *_names(model))))


@_mutation(6)
def _weight(rng: random.Random, _model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    if graph.initializer:
        _damage_tensor(rng, rng.choice(graph.initializer))


@_mutation(3)
def _dimension(rng: random.Random, _model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    values = [*graph.input, *graph.input, *graph.output, *graph.value_info]
    if not values:
        return
    dims = rng.choice(values).type.tensor_type.shape.dim
    match rng.randrange(5):
        case 0:
            dims.add().dim_value = rng.choice((1, 2, 3))
        case 1 if dims:
            del dims[rng.randrange(len(dims))]
        case 2 if dims:
            dims[rng.randrange(len(dims))].dim_param = rng.choice(("N", "", "a b"))
        case _ if dims:
            dims[rng.randrange(len(dims))].dim_value = rng.choice(_INTERESTING)


@_mutation(3)
def _value_type(rng: random.Random, _model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    values = [*graph.input, *graph.input, *graph.output, *graph.value_info]
    if values:
        value = rng.choice(values)
        if rng.random() < 0.1:
            value.ClearField("type")
        else:
            value.type.tensor_type.elem_type = rng.randrange(0, 27)


@_mutation(2)
def _all_types(rng: random.Random, model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    """Another type for the whole graph, so that it may stay consistent."""
    kind = rng.choice(_TYPES)
    for value in [*graph.input, *graph.output, *graph.value_info]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = kind
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            try:
                array = onnx.numpy_helper.to_array(tensor)
                cast = array.astype(helper.tensor_dtype_to_np_dtype(kind))
            except Exception:
                continue
            tensor.CopyFrom(onnx.numpy_helper.from_array(cast, tensor.name))
    del model


@_mutation(2)
def _rename(rng: random.Random, model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    """Another name for a value wherever it occurs, an odd one or one that is taken."""
    old, new = rng.choice(_names(model)), rng.choice((*_NAMES, *_names(model)))
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == old:
                    names[i] = new
    for value in [*graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        if value.name == old:
            value.name = new


@_mutation(2)
def _results(rng: random.Random, model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    match rng.randrange(4):
        case 0 if graph.output:
            graph.output[0].name = rng.choice(_names(model))
        case 1:
            graph.output.add().name = rng.choice(_names(model))
        case 2 if graph.output:
            del graph.output[-1]
        case _:
            for name in [n for node in graph.node for n in node.output][:4]:
                graph.output.add().name = name


@_mutation(2)
def _version(rng: random.Random, model: onnx.ModelProto, _graph: onnx.GraphProto) -> None:
    match rng.randrange(6):
        case 0:
            model.ir_version = rng.choice((0, 2, 3, 4, 7, 8, 10, 13, 99, *_INTERESTING))
        case 1:
            model.opset_import.add(domain=rng.choice(("", "ai.onnx", "x", "ai.onnx.ml")), version=1)
        case 2:
            model.opset_import[0].version = rng.choice(_INTERESTING)
        case _ if model.opset_import:
            model.opset_import[0].version = rng.randrange(1, 28)


@_mutation(1)
def _gone(rng: random.Random, _model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    fields = (graph.input, graph.initializer, graph.node, graph.value_info)
    field = rng.choice([f for f in fields if f] or [graph.node])
    if field:
        at = rng.randrange(len(field))
        if rng.random() < 0.3:
            field.append(field[at])
        else:
            del field[at]


@_mutation(1)
def _made_an_input(rng: random.Random, _model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    """An initializer becomes an input: what was constant is known at run time only."""
    if graph.initializer:
        tensor = rng.choice(graph.initializer)
        value = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        graph.input.append(value)
        if rng.random() < 0.8:
            graph.initializer.remove(tensor)


@_mutation(1)
def _shadow(rng: random.Random, model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    """A function with the name of an operator, or a node that calls itself."""
    node = _node(rng, graph)
    if node is None:
        return
    domain = rng.choice(("", node.domain, "local"))
    body = onnx.NodeProto()
    body.CopyFrom(node)
    inputs = [n for n in dict.fromkeys(node.input) if n]
    function = helper.make_function(
        domain, node.op_type, inputs, list(node.output), [body], list(model.opset_import)
    )
    model.functions.append(function)
    if rng.random() < 0.5:
        node.domain = domain
        del node.attribute[:]


@_mutation(1)
def _quantised(rng: random.Random, _model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    note = graph.quantization_annotation.add()
    note.tensor_name = rng.choice([t.name for t in graph.initializer] or ["x"])
    if graph.initializer and rng.random() < 0.5:
        sparse = graph.sparse_initializer.add()
        sparse.values.CopyFrom(rng.choice(graph.initializer))
        sparse.indices.CopyFrom(rng.choice(graph.initializer))
        sparse.dims.append(rng.choice(_INTERESTING))


def _damage_tensor(rng: random.Random, tensor: onnx.TensorProto) -> None:
    match rng.randrange(8):
        case 0 if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_INTERESTING)
        case 1:
            tensor.dims.append(rng.choice((0, 1, 1, 2, -1)))
        case 2:
            tensor.data_type = rng.randrange(0, 27)
        case 3 if tensor.dims:
            del tensor.dims[rng.randrange(len(tensor.dims))]
        case 4:
            _external(rng, tensor)
        case 5:
            tensor.raw_data = tensor.raw_data[: rng.randrange(8)]
        case _:
            _one_value(rng, tensor)


def _one_value(rng: random.Random, tensor: onnx.TensorProto) -> None:
    try:
        array = onnx.numpy_helper.to_array(tensor).copy()
    except Exception:  # damaged already, in any of onnx's ways
        return
    if not array.size or array.dtype == object:
        return
    values = _FLOATS if array.dtype.kind == "f" else _INTERESTING
    value = rng.choice(values)
    if array.dtype.kind in "iu":
        value = ((int(value) + 2**63) % 2**64) - 2**63
        bits = 8 * array.dtype.itemsize
        value = int(value) % 2**bits
        if array.dtype.kind == "i" and value >= 2 ** (bits - 1):
            value -= 2**bits
    try:
        array.reshape(-1)[rng.randrange(array.size)] = value
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    except (ValueError, TypeError, OverflowError, KeyError):
        return


def _external(rng: random.Random, tensor: onnx.TensorProto) -> None:
    """Data in another file; the names are of what :func:`tests.fuzz.campaign` lays beside it."""
    places = (
        "weights.bin",
        "../weights.bin",
        "/etc/hostname",
        "/dev/zero",
        "link",
        "pipe",
        "",
        ".",
    )
    tensor.data_location = TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    tensor.external_data.add(key="location", value=rng.choice(places))
    for key in ("offset", "length"):
        if rng.random() < 0.6:
            value = rng.choice((*map(str, _INTERESTING), "x", "", "1e3", "0x10", "٣", " 4"))
            tensor.external_data.add(key=key, value=value)


def _node(rng: random.Random, graph: onnx.GraphProto) -> onnx.NodeProto | None:
    return rng.choice(graph.node) if graph.node else None


def _attribute(rng: random.Random, graph: onnx.GraphProto) -> onnx.AttributeProto | None:
    attributes = [a for node in graph.node for a in node.attribute]
    return rng.choice(attributes) if attributes else None


def _subgraphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield attribute.g


def _names(model: onnx.ModelProto) -> list[str]:
    names = [v.name for v in model.graph.input] + [t.name for t in model.graph.initializer]
    return [*names, *(name for node in model.graph.node for name in node.output), "nowhere", ""]


_TYPES = (
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT16,
    TensorProto.UINT16,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.UINT32,
    TensorProto.UINT64,
    TensorProto.BOOL,
)

_OPERATORS = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""})
