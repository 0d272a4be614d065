"""``tvm-edge quantize``, and pictures on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from tests.cli.conftest import Files, Invoke
from tests.frontend.picture_network import network


def test_a_model_and_what_it_costs(invoke: Invoke, files: Files, tmp_path: Path) -> None:
    data, output = tmp_path / "data.npz", tmp_path / "small.int8.onnx"
    random = np.random.default_rng(0)
    np.savez(data, data=random.standard_normal((4, 3, 16, 16)).astype("float32"))
    outcome = invoke("quantize", files.model, "--data", data, "-o", output, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.data["samples"] == 4 and outcome.data["model"] == str(output)
    assert outcome.data["outputs"][0]["name"] == "pooled"
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(output).graph.node)
    again = invoke("quantize", output, "--data", data)
    assert again.code == 4 and "quantised already" in again.err


def test_pictures(invoke: Invoke, tmp_path: Path) -> None:
    path, inputs, outputs = (tmp_path / name for name in ("n.onnx", "i.npz", "o.npz"))
    onnx.save(network(8, 12), path)
    frame = np.random.default_rng(0).integers(0, 256, (1, 8, 12, 3), dtype="uint8")
    np.savez(inputs, data=frame)
    how = "data:color=RGB->BGR,mean=1/2/3,std=2"
    ran = invoke("run", path, "--preprocess", how, "--inputs", inputs, "--outputs", outputs)
    assert (ran.code, ran.err) == (0, "")
    expected = (frame[..., ::-1] - np.asarray([1, 2, 3], "float32")) / 2
    np.testing.assert_allclose(np.load(outputs)["y"], expected.transpose(0, 3, 1, 2), rtol=1e-6)
    assert invoke("run", path, "--preprocess", "data:colour=RGB").code == 2
    assert invoke("run", path, "--preprocess", "data:size=axb").code == 2
    refused = invoke("run", path, "--preprocess", "data:color=HSV")
    assert refused.code == 4 and "use one of" in refused.err
