"""Published networks as ONNX models: no download, seeded, deterministic.

The topologies are the published ones; the weights are random, calibrated so that activations keep
unit scale and outputs depend on the picture (:mod:`tvm_edge.zoo.calibration`). They serve tests,
benchmarks and examples; they do not recognise anything. One network does, and ships as a file:
``shapes_ssd`` (:mod:`tvm_edge.zoo.trained`), on pictures from :mod:`tvm_edge.zoo.shapes`. Some are
there in int8 as well, quantised by ONNX Runtime's tool: ``resnet50_v1_int8``, ``mobilenet_v2_int8``
(:mod:`tvm_edge.zoo.quantized`).

>>> import tvm_edge.zoo
>>> "resnet50_v2" in tvm_edge.zoo.names()
True
>>> model = tvm_edge.zoo.build("mobilenet_v2")                       # doctest: +SKIP
>>> tvm_edge.zoo.save("mobilenet_v2", "mobilenet_v2.onnx")           # doctest: +SKIP
>>> feeds = tvm_edge.zoo.sample_input("mobilenet_v2")                # doctest: +SKIP

To add a network: an entry in :mod:`tvm_edge.zoo.catalogue` and a function of the same name in
``networks/<family>.py``.
"""

from tvm_edge.zoo.catalogue import ZooEntry, entry, names, trained_names
from tvm_edge.zoo.models import build, sample_input, save
from tvm_edge.zoo.quantized import quantized_names

__all__ = [
    "ZooEntry",
    "build",
    "entry",
    "names",
    "quantized_names",
    "sample_input",
    "save",
    "trained_names",
]
