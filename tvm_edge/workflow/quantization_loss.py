"""A quantised model, and how far it is from the float32 one."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_edge.files import whole_file, writing

if TYPE_CHECKING:
    import onnx

__all__ = ["AveragePrecision", "LayerLoss", "OutputLoss", "Quantized"]


@dataclass(frozen=True)
class AveragePrecision:
    """Mean average precision of a detector over labelled pictures, at an IoU of 0.5.

    Attributes
    ----------
    float32, int8 : float
    pictures : int
    """

    float32: float
    int8: float
    pictures: int


@dataclass(frozen=True)
class OutputLoss:
    """An output beside that of the float32 model.

    Attributes
    ----------
    name : str
    error : float
        Root mean square of the difference, relative to that of the output.
    agreement : float or None
        Share of samples with the same largest element; ``None`` for what has no classes.
    """

    name: str
    error: float
    agreement: float | None


@dataclass(frozen=True)
class LayerLoss:
    """Error that a node's quantisation makes, from the float32 node on the same inputs.

    Attributes
    ----------
    node, op_type : str
    error : float
        Root mean square, relative to that of the result.
    nodes : tuple of str
        The node and those that are one with it, as its activation.
    """

    node: str
    op_type: str
    error: float
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Quantized:
    """A quantised model and what it costs.

    Attributes
    ----------
    model : onnx.ModelProto
    method : str
    samples : int
    drop : float
        With labels what the mean average precision loses. Else samples that change their largest
        class, from 0 to 1; of a model without classes the largest error of an output, and of a
        detector's boxes and scores before suppression.
    outputs : tuple of OutputLoss
    layers : tuple of LayerLoss
        Most first.
    excluded : tuple of str
        Nodes that stay float32.
    average_precision : AveragePrecision or None
        With labels.
    """

    model: onnx.ModelProto
    method: str
    samples: int
    drop: float
    outputs: tuple[OutputLoss, ...]
    layers: tuple[LayerLoss, ...]
    excluded: tuple[str, ...] = ()
    average_precision: AveragePrecision | None = None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model, and return its path.

        Raises
        ------
        InputError
            The file cannot be written.
        """
        target = Path(path)
        with writing(target), whole_file(target) as file:
            file.write(self.model.SerializeToString())
        return target

    def text(self, most: int = 10) -> str:
        """Return what it costs as a page of text."""
        lines = [f"{self.method} over {self.samples} samples, drop {self.drop:.4f}"]
        if (found := self.average_precision) is not None:
            lines.append(
                f"mAP {found.float32:.4f} in float32, {found.int8:.4f} in int8, "
                f"of {found.pictures} pictures"
            )
        lines.append("")
        for output in self.outputs:
            same = "" if output.agreement is None else f", top-1 agrees {output.agreement:.1%}"
            found = np.isfinite(output.error)
            error = f"error {output.error:.2e}" if found else "as many objects not always found"
            lines.append(f"output {output.name}: {error}{same}")
        lines += ["", "nodes that lose most:"]
        width = max((len(layer.node) for layer in self.layers[:most]), default=0)
        for layer in self.layers[:most]:
            lines.append(f"  {layer.node:{width}}  {layer.op_type:16}  {layer.error:.2e}")
        if self.excluded:
            lines += ["", f"left in float32: {', '.join(self.excluded)}"]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary, without the model."""
        found = self.average_precision
        return {
            "method": self.method,
            "samples": self.samples,
            "drop": self.drop,
            "outputs": [asdict(output) for output in self.outputs],
            "layers": [asdict(layer) for layer in self.layers],
            "excluded": list(self.excluded),
            "average_precision": None if found is None else asdict(found),
        }
