"""Emit ONNX nodes and, in the same call, evaluate them on calibration pictures."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray
from onnx import helper, numpy_helper

from tvm_edge.zoo.evaluate import OPSET, evaluate
from tvm_edge.zoo.pictures import pictures

__all__ = ["Graph", "Tensor"]

_IR_VERSION = 8  # the one of opset 17
_CALIBRATION_SEED = 0xCA11B8
_CALIBRATION_PIXELS = 300_000
_CALIBRATION_PICTURES = (2, 16)  # at least and at most


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a :class:`Graph` under construction.

    Attributes
    ----------
    graph : Graph
    name : str
        Its name in the ONNX graph.
    value : NDArray or None
        What it holds for the calibration pictures, float64 where the model has float32; the batch
        is theirs, not the model's. A constant's is as stored, float32. None after :meth:`detach`.
    """

    graph: Graph = field(repr=False)
    name: str
    value: NDArray[Any] | None = field(repr=False)

    @property
    def calibration(self) -> NDArray[Any]:
        """`value` for computing with, where there must be one: float64 also of a constant."""
        assert self.value is not None, f"{self.name} was detached from calibration"
        return self.value.astype(np.float64) if self.value.dtype == np.float32 else self.value

    @property
    def channels(self) -> int:
        return int(self.calibration.shape[1])

    @property
    def spatial(self) -> tuple[int, int]:
        """Height and width."""
        height, width = self.calibration.shape[2:]
        return height, width

    def detach(self) -> Tensor:
        """Return this tensor without its value: nothing after it is evaluated or calibrated."""
        return replace(self, value=None)


class Graph:
    """An ONNX graph under construction, with one input ``data``.

    Parameters
    ----------
    name : str
        Name of the graph.
    image_size : tuple[int, int]
        Height and width of ``data``, in pixels.
    batch : int
        Pictures in ``data``.
    width : float
        Multiplier of every channel count passed through :meth:`channels`.
    seed : int
        Seed of all weights and of the calibration pictures.

    Attributes
    ----------
    data : Tensor
        The input, float32 ``[batch, 3, height, width]``.
    batch : int
        Pictures in ``data``.
    """

    def __init__(
        self, name: str, image_size: tuple[int, int], *, batch: int, width: float, seed: int
    ) -> None:
        self.batch = batch
        self._name = name
        self._width = width
        self._seed = seed
        self._scopes: list[str] = []
        self._names: set[str] = set()
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, NDArray[Any]] = {}
        self._outputs: dict[str, onnx.ValueInfoProto] = {}
        # A small picture has small feature maps: it takes more of them for the same statistics.
        wanted = math.ceil(_CALIBRATION_PIXELS / math.prod(image_size))
        count = min(_CALIBRATION_PICTURES[1], max(_CALIBRATION_PICTURES[0], wanted))
        drawn = pictures(count, image_size, (_CALIBRATION_SEED, seed))
        self.data = Tensor(self, "data", drawn.astype(np.float64))
        self._input = helper.make_tensor_value_info(
            "data", onnx.TensorProto.FLOAT, (batch, 3, *image_size)
        )

    def channels(self, published: int) -> int:
        """Scale a published channel count by the width, to a multiple of 8 (at least 8).

        The rounding is that of the released MobileNets: to the nearest, but never down by more
        than a tenth.
        """
        if self._width == 1:
            return published
        wanted = published * self._width
        rounded = max(8, int(wanted + 4) // 8 * 8)
        return rounded if rounded >= 0.9 * wanted else rounded + 8

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names of what is added inside with ``name/``."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def random(self, name: str) -> np.random.Generator:
        """A generator of its own for the layer `name`, whatever other layers the graph has."""
        return np.random.default_rng([self._seed, zlib.crc32(self._path(name).encode())])

    def constant(self, array: NDArray[Any] | float, name: str) -> Tensor:
        """Add an initializer; floating-point values are stored as float32."""
        stored = np.asarray(array)
        if stored.dtype.kind == "f":
            stored = stored.astype(np.float32)
        path = self._new_path(name)
        self._initializers[path] = stored
        return Tensor(self, path, stored)

    def op(self, op_type: str, *inputs: Tensor | None, name: str, **attributes: Any) -> Tensor:
        """Add a node with one output, evaluated unless an input is detached.

        None stands for an optional input that is left out.
        """
        return self.ops(op_type, *inputs, name=name, count=1, **attributes)[0]

    def ops(
        self, op_type: str, *inputs: Tensor | None, name: str, count: int, **attributes: Any
    ) -> tuple[Tensor, ...]:
        """Add a node with `count` outputs, as :meth:`op` does."""
        path = self._new_path(name)
        results = [f"{path}:{i}" for i in range(count)]
        names = [x.name if x else "" for x in inputs]
        self._nodes.append(helper.make_node(op_type, names, results, path, **attributes))
        if any(x.value is None for x in inputs if x):
            return tuple(Tensor(self, result, None) for result in results)
        # Gemm takes a float32 weight as it is: YOLO's would be 1.6 GB in float64.
        values = evaluate(
            op_type,
            [(x.value if op_type == "Gemm" else x.calibration) if x else None for x in inputs],
            count,
            **attributes,
        )
        return tuple(Tensor(self, r, v) for r, v in zip(results, values, strict=True))

    def output(
        self,
        name: str,
        x: Tensor,
        shape: Sequence[int | str],
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Make `x` an output of the model called `name`; a string in `shape` is a symbol."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._outputs[x.name] = helper.make_tensor_value_info(name, kind, shape)

    def model(self, doc: str) -> onnx.ModelProto:
        """Return the finished model, every intermediate shape inferred; the graph is used up."""
        public = {tensor: info.name for tensor, info in self._outputs.items()}
        for node in self._nodes:
            for names in (node.input, node.output):
                names[:] = [public.get(n, n) for n in names]
        # Inference serialises the whole model twice, 1 s for ResNet-50. Declared as inputs, weights
        # cost it only their type; integers (targets of Reshape) it has to see.
        weights, integers = [], []
        for name, array in self._initializers.items():
            if array.dtype.kind == "f":
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                weights.append(helper.make_tensor_value_info(name, kind, array.shape))
            else:
                integers.append(numpy_helper.from_array(array, name))
        skeleton = helper.make_graph(
            self._nodes, self._name, [self._input, *weights], list(self._outputs.values()), integers
        )
        model = helper.make_model(
            skeleton,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=_IR_VERSION,
            producer_name="tvm-edge zoo",
            doc_string=doc,
        )
        model = onnx.shape_inference.infer_shapes(
            model, check_type=True, strict_mode=True, data_prop=True
        )
        del model.graph.input[1:]
        del model.graph.initializer[:]
        # Each in its place and then dropped: a copy of every weight at a time would be too much.
        for name in list(self._initializers):
            array = self._initializers.pop(name)
            tensor = model.graph.initializer.add(name=name, dims=array.shape)
            tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor.raw_data = array.tobytes()
        return model

    def _path(self, name: str) -> str:
        return "/".join((*self._scopes, name))

    def _new_path(self, name: str) -> str:
        path = self._path(name)
        assert path not in self._names, f"{path} is there already"
        self._names.add(path)
        return path
