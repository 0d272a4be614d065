"""Read a path, bytes or a ModelProto, and check the model.

Nothing after this file meets a damaged model: what cannot be parsed, does not follow the ONNX
specification, or would read files outside the model's folder ends here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tvm_edge.errors import InvalidModelError, one_line
from tvm_edge.extras import require
from tvm_edge.frontend.onnx_edges import all_nodes, subgraphs
from tvm_edge.frontend.onnx_repairs import forget_declared_shapes, repair

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message

__all__ = ["checked_proto", "read_proto", "shapes_do_not_fit", "weight_notes", "without_weights"]

# Operators whose shape onnx infers as if a default were another.
_INFERRED_WRONG = frozenset({"STFT"})

_ZIP = b"PK\x03\x04"
_LARGE_WEIGHT = 1 << 14  # elements; what shape inference reads (scales, ranges) has fewer


def read_proto(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto, *, copy: bool = True
) -> onnx.ModelProto:
    """Parse a model and load its external data.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
    copy : bool
        Whether a ``ModelProto`` is somebody else's, who expects it unchanged.

    Raises
    ------
    InvalidModelError
        The file is absent, empty, truncated or not ONNX, or its external data is missing or lies
        outside the model's folder.
    """
    onnx, *_ = (
        require(package, "onnx", "to read ONNX models")
        for package in ("onnx", "onnx_ir", "onnxscript")
    )
    if isinstance(source, onnx.ModelProto):
        proto = source
        if copy:
            proto = onnx.ModelProto()
            proto.CopyFrom(source)
        folder = None
        label = f"the model {proto.graph.name!r}" if proto.graph.name else "the model"
    elif isinstance(source, (bytes, bytearray, memoryview)):
        proto, folder, label = _parse(bytes(source), "the bytes"), None, "the bytes"
    else:
        path = Path(source)
        label = f"{str(path)!r}"
        try:
            data = path.read_bytes()
        except OSError as err:
            raise InvalidModelError(
                f"cannot read the model {label}: {err.strerror}; check the path"
            ) from err
        proto, folder = _parse(data, label), path.resolve().parent
    _load_external_data(proto, folder, label)
    return proto


def checked_proto(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Refuse what breaks the ONNX specification beyond repair.

    Returns
    -------
    onnx.ModelProto
        The model with its nodes in order, and what the file gets wrong mended.
    tuple of str
        What was mended, for the user.

    Raises
    ------
    InvalidModelError
        Unknown opset or IR version, a cycle, missing inputs, inconsistent shapes or types.
    """
    notes = repair(proto)
    _check_versions(proto)
    _say_defaults(proto)
    _infer_outputs(proto)
    try:
        _check(proto)
    except InvalidModelError as err:
        if shapes_do_not_fit(err):
            notes += _mend_shapes(proto, err)
        elif "topologically sorted" in str(err):
            # ONNX asks for sorted nodes, and not every tool obeys.
            proto = _sorted_nodes(proto)
            _check(proto)
        else:
            raise
    return proto, tuple(notes)


def shapes_do_not_fit(problem: InvalidModelError) -> bool:
    """Return whether a model is refused for shapes that contradict each other."""
    import onnx

    return isinstance(problem.__cause__, onnx.shape_inference.InferenceError)


def _infer_outputs(proto: onnx.ModelProto) -> None:
    """Write the shapes of outputs, which must say them, and not every tool does."""
    import onnx

    if all(v.type.tensor_type.HasField("shape") for v in proto.graph.output):
        return
    with _specification():
        inferred = onnx.shape_inference.infer_shapes(without_weights(proto)).graph
    for field in ("output", "value_info"):
        proto.graph.ClearField(field)
        getattr(proto.graph, field).extend(getattr(inferred, field))


def _mend_shapes(proto: onnx.ModelProto, problem: InvalidModelError) -> list[str]:
    """Go on without the shapes that the file declares, or leave a branch to the importer.

    Returns
    -------
    list of str
        Notes for the user; of a branch the importer makes its own.

    Raises
    ------
    InvalidModelError
        `problem`: the operators themselves do not fit each other.
    """
    forget_declared_shapes(proto.graph)
    _infer_outputs(proto)
    reason = one_line(problem.__cause__ or problem)
    try:
        _check(proto)
    except InvalidModelError:
        if not any(True for node in proto.graph.node for _ in subgraphs(node)):
            raise problem from problem.__cause__
        # A branch that is never taken need not fit. The importer refuses what else does not.
        _check(proto, shapes=False)
        return []
    return [f"the file declares shapes that its operators do not have: {reason}"]


def weight_notes(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Warn of floating-point initializers that hold NaN or infinity.

    Not of single numbers: a limit of a Clip or the filler of a mask may well be infinite.

    Raises
    ------
    InvalidModelError
        An initializer's data does not fit its type and shape, which onnx's checker lets pass.
    """
    import onnx

    notes = []
    for tensor in proto.graph.initializer:
        try:
            value = onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError) as err:
            raise InvalidModelError(
                f"the data of the weight {tensor.name!r} does not fit its shape "
                f"{tuple(tensor.dims)}: {one_line(err)}; export the model again"
            ) from err
        if value.dtype.kind == "f" and value.size > 1 and not np.isfinite(value).all():
            notes.append(
                f"the weight {tensor.name!r} holds NaN or infinity; outputs that depend on it will "
                "too"
            )
    return tuple(notes)


def _parse(data: bytes, label: str) -> onnx.ModelProto:
    import google.protobuf.message
    import onnx

    if not data:
        raise InvalidModelError(f"{label} is empty (0 bytes); export the model again")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except google.protobuf.message.DecodeError as err:
        if data.startswith(_ZIP):
            raise InvalidModelError(
                f"{label} is a ZIP archive, and no ONNX model; an artifact is compiled already: "
                "pass it to tvm_edge.load (tvm-edge run, bench, profile); a model of PyTorch: "
                "export it to ONNX"
            ) from err
        raise InvalidModelError(
            f"{label} is not an ONNX model, or is truncated or damaged "
            f"({len(data)} bytes; {one_line(err)}); export or download it again"
        ) from err
    if not proto.HasField("graph") or not proto.graph.node:
        raise InvalidModelError(
            f"{label} parses but holds no graph: it is not an ONNX model or was cut short; "
            "export or download it again"
        )
    return proto


def _check_versions(proto: onnx.ModelProto) -> None:
    import onnx

    if proto.ir_version < 3:
        raise InvalidModelError(
            f"ONNX IR version {proto.ir_version} is not supported (3 or newer is); "
            "convert the model with onnx.version_converter"
        )
    opsets = {o.domain or "ai.onnx": o.version for o in proto.opset_import}
    if not opsets:
        raise InvalidModelError(
            "the model imports no version of the ONNX operator set (opset_import is empty); "
            "export it again"
        )
    newest = onnx.defs.onnx_opset_version()
    # A model of other domains alone need not name ONNX's own.
    if not 1 <= opsets.get("ai.onnx", newest) <= newest:
        raise InvalidModelError(
            f"the model uses opset {opsets['ai.onnx']}, and onnx {onnx.__version__} knows 1 to "
            f"{newest}; export it with opset_version={newest} or run: pip install -U onnx"
        )


def _say_defaults(proto: onnx.ModelProto) -> None:
    """Write default attributes out where an operator is defined by others, and where onnx errs.

    onnx's checker and its inliner put attributes into the definition, and forget those that a node
    leaves to their defaults.
    """
    import onnx.defs

    versions = {opset.domain: opset.version for opset in proto.opset_import}
    for node in all_nodes(proto.graph):
        try:
            schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            continue  # none of ONNX's
        defined = schema.has_function or schema.has_context_dependent_function
        if not defined and node.op_type not in _INFERRED_WRONG:
            continue
        said = {attribute.name for attribute in node.attribute}
        node.attribute.extend(
            attribute.default_value
            for name, attribute in schema.attributes.items()
            if name not in said and attribute.default_value.name
        )


def _check(proto: onnx.ModelProto, *, shapes: bool = True) -> None:
    import onnx

    light = without_weights(proto)
    if not shapes:
        for value in light.graph.output:
            value.type.tensor_type.shape.SetInParent()  # which the checker wants to be there
    with _specification():
        onnx.checker.check_model(light, full_check=shapes)


def without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model with its large floating-point weights as inputs, of their type and shape.

    onnx's C++ takes a model as one message: with its weights it would be copied several times over,
    and refused above 2 GiB. :func:`weight_notes` looks at their data.
    """
    import onnx

    kinds = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}
    light = onnx.ModelProto()
    _copy_fields(proto, light, without="graph")
    _copy_fields(proto.graph, light.graph, without="initializer")
    inputs = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        large = math.prod(tensor.dims) > _LARGE_WEIGHT and tensor.HasField("raw_data")
        declared = tensor.name in inputs
        # Before version 4 of the format a weight had to be an input too: the checker sees to it.
        if (
            not (large and tensor.name and tensor.data_type in kinds)
            or min(tensor.dims, default=0) < 1
            or (proto.ir_version < 4 and not declared)
        ):
            light.graph.initializer.append(tensor)
        elif not declared:
            light.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return light


def _copy_fields(source: Message, target: Message, without: str) -> None:
    """Copy every field of a protobuf message but one."""
    for field, value in source.ListFields():
        if field.name == without:
            continue
        if hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)


@contextmanager
def _specification() -> Iterator[None]:
    """Translate the errors of onnx's checker and shape inference to ours."""
    import google.protobuf.message
    import onnx

    try:
        yield
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as err:
        raise InvalidModelError(
            f"the model breaks the ONNX specification: {one_line(err)}; "
            "mend the exporter or the file and check it with onnx.checker.check_model"
        ) from err
    # Above protobuf's 2 GiB onnx raises ValueError or EncodeError, by version.
    except (google.protobuf.message.EncodeError, ValueError) as err:
        raise InvalidModelError(
            f"the model cannot be checked: {one_line(err)}; weights above 2 GiB must be "
            "external data: save it with onnx.save(..., save_as_external_data=True)"
        ) from err
    # Both are C++ that fails on damaged models in ways of its own (IndexError, RuntimeError).
    except Exception as err:
        raise InvalidModelError(
            f"onnx's checker fails on the model ({type(err).__name__}: {one_line(err)}); "
            "mend the exporter or the file"
        ) from err


def _sorted_nodes(proto: onnx.ModelProto) -> onnx.ModelProto:
    import onnx_ir

    try:
        model = onnx_ir.serde.deserialize_model(proto)
    except Exception as err:  # it raises whatever the damaged field happens to cause
        raise InvalidModelError(
            f"the model cannot be read ({type(err).__name__}: {one_line(err)}); "
            "export the model again"
        ) from err
    try:
        model.graph.sort()
    except ValueError as err:
        raise InvalidModelError(
            f"the model graph is cyclic ({one_line(err)}); export the model again"
        ) from err
    return onnx_ir.serde.serialize_model(model)


def _load_external_data(proto: onnx.ModelProto, folder: Path | None, label: str) -> None:
    import onnx.checker
    from onnx.external_data_helper import (
        ExternalDataInfo,
        load_external_data_for_tensor,
        uses_external_data,
    )

    for tensor in _tensors(proto):
        if not uses_external_data(tensor):
            continue
        name = tensor.name
        try:
            location = ExternalDataInfo(tensor).location
            inside = (folder or Path()).joinpath(location).resolve()
            there = inside.is_file()
        # A number that is none, a NUL, a name that is too long, links in a circle.
        except (ValueError, TypeError, OSError, RuntimeError) as err:
            raise InvalidModelError(
                f"the tensor {name!r} of {label} says wrongly where its data is: "
                f"{one_line(err)}; save the model again"
            ) from err
        if folder is None:
            raise InvalidModelError(
                f"the tensor {name!r} keeps its data in the file {location!r}, and {label} came "
                "without a folder; pass the path of the model instead"
            )
        if os.path.isabs(location) or not inside.is_relative_to(folder):
            raise InvalidModelError(
                f"the tensor {name!r} of {label} points outside the model's folder "
                f"({location!r}); external data must lie in {str(folder)!r} or below"
            )
        if not there:
            raise InvalidModelError(
                f"the external data {location!r} of the tensor {name!r} is missing; "
                f"put the file into {str(folder)!r}"
            )
        try:
            load_external_data_for_tensor(tensor, str(folder))
        except (
            onnx.checker.ValidationError,
            ValueError,
            OSError,
            OverflowError,  # a length or offset that is no file's
            MemoryError,
        ) as err:
            raise InvalidModelError(
                f"the external data {location!r} of the tensor {name!r} of {label} cannot be "
                f"read: {one_line(err)}; copy the file again"
            ) from err


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model: in initializers, attributes, subgraphs and functions."""

    def of_nodes(nodes: Iterator[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                graphs = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
                for graph in graphs:
                    yield from of_graph(graph)

    def of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield sparse.values
            yield sparse.indices
        yield from of_nodes(graph.node)

    yield from of_graph(proto.graph)
    for function in proto.functions:
        yield from of_nodes(function.node)
