"""The smallest file that still shows a finding."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import onnx

from tests.fuzz.artifacts import Edit

__all__ = ["minimise_edits", "minimise_model"]


def minimise_model(content: bytes, still: Callable[[bytes], bool], seconds: float = 60) -> bytes:
    """Leave out fields of a model for as long as `still` holds."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception:  # does not parse: its bytes are the finding
        return content
    deadline = time.monotonic() + seconds
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(model):
            if time.monotonic() > deadline:
                return content
            data = candidate.SerializeToString()
            if len(data) < len(content) and still(data):
                model, content, smaller = candidate, data, True
                break
    return content


def _smaller(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    def copy() -> onnx.ModelProto:
        new = onnx.ModelProto()
        new.CopyFrom(model)
        return new

    for i in reversed(range(len(model.graph.node))):
        new = copy()
        gone = new.graph.node.pop(i)
        produced = {name for node in new.graph.node for name in node.output}
        kept = [v for v in new.graph.output if v.name not in gone.output]
        known = {v.name: v for v in new.graph.value_info}
        kept += [known[n] for n in gone.input if n in produced and n in known][:1]
        if kept:
            del new.graph.output[:]
            new.graph.output.extend(kept)
            yield new
    for field in ("output", "input", "initializer", "value_info", "sparse_initializer"):
        for i in reversed(range(len(getattr(model.graph, field)))):
            new = copy()
            del getattr(new.graph, field)[i]
            yield new
    for field in ("functions", "metadata_props", "opset_import"):
        for i in reversed(range(len(getattr(model, field)))):
            new = copy()
            del getattr(new, field)[i]
            yield new
    for i, node in enumerate(model.graph.node):
        for j in reversed(range(len(node.attribute))):
            new = copy()
            del new.graph.node[i].attribute[j]
            yield new
        for j in reversed(range(len(node.input))):
            new = copy()
            del new.graph.node[i].input[j]
            yield new
    for field in ("producer_name", "producer_version", "doc_string", "domain"):
        if getattr(model, field):
            new = copy()
            new.ClearField(field)
            yield new


def minimise_edits(edits: list[Edit], still: Callable[[list[Edit]], bool]) -> list[Edit]:
    """Leave out edits for as long as `still` holds."""
    for edit in list(edits):
        fewer = [e for e in edits if e is not edit]
        if fewer and still(fewer):
            edits = fewer
    return edits
