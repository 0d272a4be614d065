"""Seeded damage to valid files."""

from __future__ import annotations

import random

import onnx

__all__ = ["mutate_bytes", "mutate_model"]

_INTERESTING = (0, 1, -1, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63))


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
        node = rng.choice(copy.graph.node)
        match rng.randrange(9):
            case 0 if node.attribute:
                attribute = rng.choice(node.attribute)
                if attribute.ints:
                    attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_INTERESTING)
                else:
                    attribute.i = rng.choice(_INTERESTING)
            case 1 if node.attribute:
                del node.attribute[rng.randrange(len(node.attribute))]
            case 2:
                node.op_type = rng.choice(copy.graph.node).op_type
            case 3 if node.input:
                node.input[rng.randrange(len(node.input))] = rng.choice(_names(copy))
            case 4 if node.input:
                del node.input[rng.randrange(len(node.input))]
            case 5 if copy.graph.initializer:
                tensor = rng.choice(copy.graph.initializer)
                if tensor.dims:
                    tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_INTERESTING)
            case 6 if copy.graph.initializer:
                tensor = rng.choice(copy.graph.initializer)
                tensor.data_type = rng.randrange(0, 24)
            case 7:
                dims = rng.choice(copy.graph.input).type.tensor_type.shape.dim
                if dims:
                    dims[rng.randrange(len(dims))].dim_value = rng.choice(_INTERESTING)
            case _:
                copy.graph.output[0].name = rng.choice(_names(copy))
    return copy.SerializeToString()


def _names(model: onnx.ModelProto) -> list[str]:
    names = [v.name for v in model.graph.input] + [t.name for t in model.graph.initializer]
    return [*names, *(name for node in model.graph.node for name in node.output), "nowhere", ""]
