"""ONNX operators that TVM's importer gets wrong or slow, converted here instead."""

from tvm_edge.frontend.operators.base import Converter
from tvm_edge.frontend.operators.detection import DETECTION
from tvm_edge.frontend.operators.elementwise import ELEMENTWISE
from tvm_edge.frontend.operators.networks import NETWORKS
from tvm_edge.frontend.operators.regions import REGIONS
from tvm_edge.frontend.operators.resize import RESIZE
from tvm_edge.frontend.operators.sampling import SAMPLING
from tvm_edge.frontend.operators.sorting import SORTING
from tvm_edge.frontend.operators.tensors import TENSORS
from tvm_edge.frontend.operators.types import TYPES, refuse_types

__all__ = ["CONVERTERS", "refuse_types"]

CONVERTERS: dict[str, Converter] = {
    **DETECTION,
    **ELEMENTWISE,
    **NETWORKS,
    **REGIONS,
    **RESIZE,
    **SAMPLING,
    **SORTING,
    **TENSORS,
    **TYPES,
}
"""ONNX operator type → converter, asked before TVM's own; ``None`` means "take TVM's".

Its attributes are the node's, and the model's ``opset``, which decides for some defaults.
"""
