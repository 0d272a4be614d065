"""Networks of the zoo in int8, as ONNX Runtime's tool makes them.

``<name>_int8`` is the network ``<name>`` with QuantizeLinear and DequantizeLinear around each
operator (QDQ): weights of int8 by output channel, activations of uint8, which are calibrated by the
least and the largest values of seeded pictures. The numbers are those of the installed version of
onnxruntime.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tvm_edge.extras import require
from tvm_edge.files import temporary_folder

if TYPE_CHECKING:
    import onnx

__all__ = [
    "CALIBRATION",
    "METHODS",
    "float32_name",
    "quantize",
    "quantized_names",
    "require_quantizer",
]

CALIBRATION = range(100, 116)
"""Seeds of the pictures that activations are calibrated by."""

_SUFFIX = "_int8"
_NETWORKS = ("mobilenet_v2", "resnet50_v1")


def quantized_names() -> tuple[str, ...]:
    """Return the names of the networks in int8, sorted."""
    return tuple(f"{name}{_SUFFIX}" for name in _NETWORKS)


def float32_name(name: str) -> str:
    """Return the network that `name` is in int8; `name` itself of any other network."""
    return name.removesuffix(_SUFFIX) if name in quantized_names() else name


METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
"""Calibrations: the least and largest values, or what of their distribution to keep."""


def quantize(
    model: onnx.ModelProto,
    pictures: Iterable[Mapping[str, NDArray[Any]]],
    *,
    method: str = "minmax",
    exclude: Iterable[str] = (),
) -> onnx.ModelProto:
    """Quantise a network of float32.

    Parameters
    ----------
    model : onnx.ModelProto
    pictures : iterable of mapping of str to np.ndarray
        Inputs to calibrate activations by.
    method : {"minmax", "entropy", "percentile"}
    exclude : iterable of str
        Nodes that stay float32.

    Returns
    -------
    onnx.ModelProto
        QDQ, batch normalisations folded.

    Raises
    ------
    tvm_edge.errors.MissingDependencyError
        If onnxruntime is not installed.
    """
    quantization = require_quantizer()
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process
    from onnxscript.rewriter import rewrite
    from onnxscript.rewriter.rules.common import fuse_batchnorm_into_conv_rule

    class Pictures(quantization.CalibrationDataReader):  # type: ignore[name-defined]
        def __init__(self) -> None:
            self._left: Iterator[Mapping[str, NDArray[Any]]] = iter(pictures)

        def get_next(self) -> Mapping[str, NDArray[Any]] | None:
            return next(self._left, None)

    # The tool prints what it is doing.
    with temporary_folder("quantize") as folder, contextlib.redirect_stdout(io.StringIO()):
        path = folder / "model.onnx"
        # The tool's own preparation folds batch normalisations with onnxruntime 1.32, and not with
        # 1.30, which then quantises what goes into each.
        folded = rewrite(model, [fuse_batchnorm_into_conv_rule])
        onnx.save(folded, path)  # given the model itself, the tool takes its weights out
        quant_pre_process(path, path, skip_symbolic_shape=True)
        quantization.quantize_static(
            onnx.load(path),
            path,
            Pictures(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            calibrate_method=quantization.CalibrationMethod[METHODS[method]],
            nodes_to_exclude=list(exclude),
        )
        return onnx.load(path)


def require_quantizer() -> ModuleType:
    """Import ONNX Runtime's tool.

    Raises
    ------
    tvm_edge.errors.MissingDependencyError
    """
    purpose = "to quantise a network"
    require("onnx", "compare", purpose)
    return require("onnxruntime.quantization", "compare", purpose)
