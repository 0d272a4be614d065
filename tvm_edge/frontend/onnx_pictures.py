"""Write the preparation of pictures as ONNX operators before a model's first layer.

They are part of the graph from then on: passes fold, fuse and place them as all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_edge.errors import InputError, near_matches
from tvm_edge.frontend.onnx_edges import all_nodes
from tvm_edge.frontend.onnx_functions import standard_version
from tvm_edge.frontend.picture import Picture, Placing

if TYPE_CHECKING:
    import onnx

__all__ = ["prepare_pictures"]

_LEAST_OPSET = 11  # Resize by half pixels, and Pad whose lengths are an input
_AXES_OPSET = 18  # Resize of some axes alone, and with antialias
_CHANNELS = (1, 3)


def prepare_pictures(proto: onnx.ModelProto, pictures: Mapping[str, Picture]) -> None:
    """Make inputs pictures.

    Parameters
    ----------
    proto : onnx.ModelProto
        Changed in place.
    pictures : mapping of str to Picture
        By input, whose name stays.

    Raises
    ------
    InputError
        No such input, one that is no image, or sizes that do not fit.
    """
    if not pictures:
        return
    version = standard_version(proto)
    if version < _LEAST_OPSET:
        raise InputError(
            f"preprocess needs a model of opset {_LEAST_OPSET} or newer, and this one is of "
            f"{version}; convert it with onnx.version_converter",
            name="preprocess",
        )
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = {value.name: value for value in proto.graph.input if value.name not in weights}
    for name, picture in pictures.items():
        if name not in inputs:
            raise InputError(
                f"preprocess names {name!r}, which is no input of the model; "
                f"{near_matches(name, inputs)}",
                name=name,
            )
        _Preparation(proto, inputs[name], picture, version).write()


class _Preparation:
    """The operators between a picture and what read the input before."""

    def __init__(
        self,
        proto: onnx.ModelProto,
        value: onnx.ValueInfoProto,
        picture: Picture,
        version: int,
    ) -> None:
        self._graph, self._value, self._picture = proto.graph, value, picture
        self._version = version
        self._nodes: list[onnx.NodeProto] = []
        self._last = value.name
        shape = value.type.tensor_type.shape.dim
        self._batch = shape[0] if shape else None
        self._layout, self._channels, self._height, self._width = self._network()

    def write(self) -> None:
        """Write them, and give the input the picture's shape and type."""
        import onnx

        name, dtype = self._value.name, self._value.type.tensor_type.elem_type
        placing = self._picture.placing(self._height, self._width)
        self._add("Cast", to=onnx.TensorProto.FLOAT)
        if self._picture.layout != "NCHW":
            self._add("Transpose", perm=[0, 3, 1, 2])
        if self._picture.swaps:  # one kernel with the transposition
            self._slice([self._channels - 1], [-self._channels - 1], [1], [-1])
        self._resize(placing)
        for which, operator in (("mean", "Sub"), ("std", "Div")):
            numbers = self._numbers(which)
            if any(number != (which == "std") for number in numbers):
                value = np.asarray(numbers, "float32").reshape(-1, 1, 1)
                self._add(operator, [(which, value)])
        if self._layout != "NCHW":
            self._add("Transpose", perm=[0, 2, 3, 1])
        if dtype not in (onnx.TensorProto.FLOAT, onnx.TensorProto.UNDEFINED):
            if dtype in (onnx.TensorProto.UINT8, onnx.TensorProto.INT8):
                self._add("Round")
            self._add("Cast", to=dtype)
        for node in all_nodes(self._graph):
            for index, read in enumerate(node.input):
                if read == name:
                    node.input[index] = self._last
        nodes = [*self._nodes, *self._graph.node]
        self._graph.ClearField("node")
        self._graph.node.extend(nodes)
        self._declare()

    def _network(self) -> tuple[str, int, int, int]:
        """Layout, channels, height and width of the network's input."""
        name = self._value.name
        dims = [
            d.dim_value if d.HasField("dim_value") else (d.dim_param or "?")
            for d in self._value.type.tensor_type.shape.dim
        ]
        for layout, channels in (("NCHW", 1), ("NHWC", 3)):
            if len(dims) == 4 and dims[channels] in _CHANNELS:
                rest = [d for axis, d in enumerate(dims) if axis not in (0, channels)]
                if not all(isinstance(length, int) for length in rest):
                    raise InputError(
                        f"preprocess makes {name!r} a picture, and its height and width are open: "
                        f"{rest[0]}×{rest[1]}; choose them with input_shapes",
                        name=name,
                    )
                return layout, int(dims[channels]), int(rest[0]), int(rest[1])
        shown = "×".join(map(str, dims)) or "a scalar"
        raise InputError(
            f"preprocess makes {name!r} a picture, and it is {shown}; only inputs with four axes "
            "and 1 or 3 channels, first or last, can be pictures",
            name=name,
            expected="N×C×H×W or N×H×W×C",
            got=shown,
        )

    def _numbers(self, name: str) -> tuple[float, ...]:
        numbers = self._picture.numbers(name)
        if len(numbers) not in (1, self._channels):
            raise InputError(
                f"Picture({name}=…) has {len(numbers)} numbers, and {self._value.name!r} has "
                f"{self._channels} channels; give one number, or one for each",
                name=name,
            )
        return numbers

    def _resize(self, placing: Placing) -> None:
        old = self._picture.size or (self._height, self._width)
        new = (placing.height, placing.width)
        if new != old:
            named: dict[str, Any] = {}
            sizes = [self._channels, *new]
            if self._picture.antialias and self._version < _AXES_OPSET:
                raise InputError(
                    f"Picture(antialias=True) needs a model of opset {_AXES_OPSET} or newer, and "
                    f"this one is of {self._version}; convert it with onnx.version_converter",
                    name="antialias",
                )
            if self._picture.antialias:  # as PIL: pixels beyond an edge have no weight
                named = {"antialias": 1, "exclude_outside": 1}
            if self._batch is not None and self._batch.HasField("dim_value"):
                sizes = [int(self._batch.dim_value), *sizes]
            elif self._version >= _AXES_OPSET:
                named["axes"], sizes = [2, 3], list(new)
            else:
                raise InputError(
                    f"preprocess resizes {self._value.name!r}, whose number of pictures is open; "
                    "choose it with input_shapes, or export the model with opset 18",
                    name=self._value.name,
                )
            # Before opset 13 operands cannot be left out, and have no elements.
            unused = None if self._version >= 13 else np.zeros(0, "float32")
            constants = [("roi", unused), ("scales", unused), ("sizes", np.asarray(sizes, "int64"))]
            self._add(
                "Resize",
                constants,
                mode="linear",
                coordinate_transformation_mode="half_pixel",
                **named,
            )
        if placing.top < 0 or placing.left < 0:
            top, left = -placing.top, -placing.left
            self._slice([top, left], [top + self._height, left + self._width], [2, 3], [1, 1])
        elif new != (self._height, self._width):
            bottom = self._height - placing.top - placing.height
            right = self._width - placing.left - placing.width
            pads = np.asarray([0, 0, placing.top, placing.left, 0, 0, bottom, right], "int64")
            fill = np.asarray(self._picture.fill, "float32")
            self._add("Pad", [("pads", pads), ("fill", fill)], mode="constant")

    def _slice(self, starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> None:
        given = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
        self._add("Slice", [(name, np.asarray(each, "int64")) for name, each in given.items()])

    def _add(
        self,
        operator: str,
        constants: Sequence[tuple[str, np.ndarray | None]] = (),
        **attributes: Any,
    ) -> None:
        from onnx import helper, numpy_helper

        own = f"{self._value.name}/preprocess/{len(self._nodes)}_{operator.lower()}"
        operands = [self._last]
        for name, value in constants:
            operands.append("" if value is None else f"{own}/{name}")
            if value is not None:
                self._graph.initializer.append(numpy_helper.from_array(value, operands[-1]))
        self._nodes.append(helper.make_node(operator, operands, [own], name=own, **attributes))
        self._last = own

    def _declare(self) -> None:
        """Write the picture's shape and type into the input."""
        import onnx

        batch = onnx.TensorShapeProto.Dimension()
        if self._batch is not None:
            batch.CopyFrom(self._batch)
        height, width = self._picture.size or (self._height, self._width)
        tensor = self._value.type.tensor_type
        kinds = {"uint8": onnx.TensorProto.UINT8, "float32": onnx.TensorProto.FLOAT}
        tensor.elem_type = kinds[self._picture.dtype]
        tensor.shape.ClearField("dim")
        tensor.shape.dim.append(batch)
        lengths = [height, width]
        place = 0 if self._picture.layout == "NCHW" else 2
        lengths.insert(place, self._channels)
        for length in lengths:
            tensor.shape.dim.add().dim_value = length
