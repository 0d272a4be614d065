"""A random model in the making: values of random types and shapes, and nodes that take them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["ANY", "FLOAT", "INT", "GrowingGraph"]

FLOAT = (TensorProto.FLOAT,) * 12 + (TensorProto.DOUBLE, TensorProto.FLOAT16)
INT = (
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.INT8,
    TensorProto.UINT8,
)
ANY = FLOAT + INT + (TensorProto.BOOL,)


class GrowingGraph:
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

    def pick(self, kinds: tuple[int, ...] = ANY, ranks: tuple[int, ...] = ()) -> str:
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
