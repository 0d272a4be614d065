"""ONNX operators that TVM's importer lacks, or gets wrong or slow, converted here instead."""

from tvm_edge.frontend.operators.base import Converter
from tvm_edge.frontend.operators.control import CONTROL
from tvm_edge.frontend.operators.detection import DETECTION
from tvm_edge.frontend.operators.elementwise import ELEMENTWISE
from tvm_edge.frontend.operators.networks import NETWORKS
from tvm_edge.frontend.operators.padding import PADDING
from tvm_edge.frontend.operators.pooling import POOLING
from tvm_edge.frontend.operators.quantization import QUANTIZATION
from tvm_edge.frontend.operators.quantized import QUANTIZED
from tvm_edge.frontend.operators.recurrent import RECURRENT
from tvm_edge.frontend.operators.reductions import REDUCTIONS
from tvm_edge.frontend.operators.regions import REGIONS
from tvm_edge.frontend.operators.resize import RESIZE
from tvm_edge.frontend.operators.sampling import SAMPLING
from tvm_edge.frontend.operators.signal import SIGNAL
from tvm_edge.frontend.operators.sorting import SORTING
from tvm_edge.frontend.operators.tensors import TENSORS
from tvm_edge.frontend.operators.types import TYPES, refuse_types
from tvm_edge.frontend.operators.windows import WINDOWS

__all__ = ["CONVERTERS", "refuse_types"]

CONVERTERS: dict[str, Converter] = {
    **CONTROL,
    **DETECTION,
    **ELEMENTWISE,
    **NETWORKS,
    **PADDING,
    **POOLING,
    **QUANTIZATION,
    **QUANTIZED,
    **RECURRENT,
    **REDUCTIONS,
    **REGIONS,
    **RESIZE,
    **SAMPLING,
    **SIGNAL,
    **SORTING,
    **TENSORS,
    **TYPES,
    **WINDOWS,
}
"""ONNX operator type → converter, asked before TVM's own; ``None`` means "take TVM's".

An operator of another domain than ONNX's own is called ``"com.example.Name"``. The attributes that
a converter gets are the node's, and the model's ``opset``, which decides for some defaults.
"""
