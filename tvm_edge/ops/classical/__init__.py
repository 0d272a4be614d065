"""Classical models, the domain ``ai.onnx.ml``: features, labels and decision trees.

Exporters of scikit-learn, XGBoost and LightGBM write them. Tensors of words are not supported here,
so that what reads or makes strings is refused.
"""

from tvm_edge.ops.classical import features, label_encoder, tree_ensemble  # noqa: F401

__all__: list[str] = []
