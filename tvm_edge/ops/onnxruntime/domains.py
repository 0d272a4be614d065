"""Domains of ONNX Runtime's operators, which its files leave out or name ONNX's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

__all__ = ["name_domains"]

_OWN = "com.microsoft"
_DOMAINS = (_OWN, "com.microsoft.nchwc")

# ONNX's first version; ONNX Runtime has them in ONNX's domain whatever the version.
_IN_ONNX_DOMAIN = {"LayerNormalization": 17, "SimplifiedLayerNormalization": None}


def name_domains(proto: onnx.ModelProto) -> None:
    """Name the domain of each operator of ONNX Runtime, as onnx's checker asks for.

    ONNX Runtime saves LayerNormalization and SimplifiedLayerNormalization in ONNX's domain, also of
    versions that lack them. It does not ask a model to import its own domain.

    Parameters
    ----------
    proto : onnx.ModelProto
        Changed in place.
    """
    versions = {opset.domain: opset.version for opset in proto.opset_import}
    version = versions.get("", versions.get("ai.onnx"))
    used = set()
    for node in _nodes(proto.graph):
        if node.domain in ("", "ai.onnx") and node.op_type in _IN_ONNX_DOMAIN:
            since = _IN_ONNX_DOMAIN[node.op_type]
            if since is None or (version is not None and version < since):
                node.domain = _OWN
        used.add(node.domain)
    for domain in _DOMAINS:
        if domain in used and domain not in versions:
            proto.opset_import.add(domain=domain, version=1)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*attribute.graphs, attribute.g):
                yield from _nodes(inner)
