"""PyTorch models, where PyTorch is installed; it is no dependency, of tests neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_edge
from tests.onnx_models import conv_relu, relative_error
from tvm_edge import InputError, InvalidModelError
from tvm_edge.frontend.torch_export import is_torch


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def classifier(torch: Any) -> Any:
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def test_other_models_are_none() -> None:
    assert not is_torch(conv_relu()) and not is_torch("model.onnx")
    with pytest.raises(InputError, match="example_inputs are of a torch"):
        tvm_edge.compile(conv_relu(), "llvm", example_inputs=(np.zeros(3),))


def test_a_module_is_compiled_as_in_inference(torch: Any) -> None:
    module = classifier(torch)
    data = torch.randn(2, 3, 20, 18)
    compiled = tvm_edge.compile(module, "llvm", example_inputs=(data,), tuning_logs=False)
    assert module.training and all(each.training for each in module.modules()), "as it was"
    (name,) = (spec.name for spec in compiled.inputs)
    (found,) = compiled.run({name: data.numpy()}).values()
    with torch.no_grad():
        expected = module.eval()(data).numpy()
    assert relative_error(found, expected) < 1e-5


def test_a_program_keeps_its_open_dimensions(torch: Any) -> None:
    module = classifier(torch).eval()
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(
        module, (torch.randn(2, 3, 16, 16),), dynamic_shapes=({0: batch},)
    )
    compiled = tvm_edge.compile(program, "llvm", tuning_logs=False)
    (spec,) = compiled.inputs
    assert isinstance(spec.shape[0], str)
    for count in (1, 3):
        data = torch.randn(count, 3, 16, 16)
        (found,) = compiled.run({spec.name: data.numpy()}).values()
        with torch.no_grad():
            assert relative_error(found, module(data).numpy()) < 1e-5


def test_inputs_by_name(torch: Any) -> None:
    class Sum(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, left: Any, right: Any) -> Any:
            return left + 2 * right

    left, right = torch.randn(2, 3), torch.randn(2, 3)
    given = {"left": left, "right": right}
    compiled = tvm_edge.compile(Sum(), "llvm", example_inputs=given)
    (found,) = compiled.run({"left": left.numpy(), "right": right.numpy()}).values()
    np.testing.assert_allclose(found, (left + 2 * right).numpy(), rtol=1e-6)


def test_what_cannot_be_exported(torch: Any) -> None:
    with pytest.raises(InputError, match="give example_inputs"):
        tvm_edge.compile(classifier(torch), "llvm")
    program = torch.export.export(classifier(torch).eval(), (torch.randn(1, 3, 8, 8),))
    with pytest.raises(InputError, match="leave example_inputs out"):
        tvm_edge.compile(program, "llvm", example_inputs=(torch.randn(1, 3, 8, 8),))
    with pytest.raises(InvalidModelError, match="PyTorch cannot export the model"):
        tvm_edge.compile(classifier(torch), "llvm", example_inputs=(torch.randn(1, 4, 8, 8),))
