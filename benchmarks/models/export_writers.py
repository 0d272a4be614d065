"""Export models to ONNX files: the side that has PyTorch, in the exports' own environment.

Weights are random with a fixed seed, so nothing is downloaded. Statistics of batch normalisation
are taken from one batch, and heads of detectors get weights that make scores differ: else their
activations vanish or overflow.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common.processes import Job
from benchmarks.models.export_cases import EXPORTS, Export
from benchmarks.models.made_inputs import make_input

_INTEGERS = ("step", "tokens", "index", "turns")


def _write(name: str, folder: Path) -> dict[str, Any]:
    """A job: export a model to ``NAME.onnx``."""
    import torch

    export = EXPORTS[name]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # the exporter of TorchScript does not know it
    (folder / f"{name}.onnx").unlink(missing_ok=True)
    if export.package == "ultralytics":
        _write_ultralytics(export, folder / f"{name}.onnx")
    else:
        _write_torch(export, folder / f"{name}.onnx")
    return {"mib": (folder / f"{name}.onnx").stat().st_size / 2**20}


def _write_torch(export: Export, path: Path) -> None:
    import torch

    model = _MAKERS[export.package](export)
    inputs: list[Any] = []
    for seed, (name, (shape, values)) in enumerate(export.inputs.items()):
        dtype = "int64" if name in _INTEGERS else "float32"
        shape = export.traced.get(name, shape)
        inputs.append(torch.from_numpy(make_input(shape, values, dtype, seed)))
    arguments = tuple(inputs)
    if export.model == "loop":
        arguments = (inputs[0], int(inputs[1]))
    _settle(model, arguments)
    options: dict[str, Any] = {"opset_version": export.opset, "input_names": list(export.inputs)}
    if export.outputs:
        options["output_names"] = list(export.outputs)
    if export.dynamo:
        options["external_data"] = False
    if export.dynamic:
        options["dynamic_axes"] = {key: dict(axes) for key, axes in export.dynamic.items()}
    with torch.no_grad():
        torch.onnx.export(model, arguments, str(path), dynamo=export.dynamo, **options)


def _settle(model: Any, arguments: tuple[Any, ...]) -> None:
    """Take the statistics of batch normalisation from one batch, and stop training."""
    import torch

    model.eval()
    norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    if norms:
        _pass(model, arguments, 1.0)
        if not all(norm.running_var.any() for norm in norms):
            # Maps of one pixel that are the same: their variance has to come from the pictures.
            _pass(model, arguments, 0.5)
    model.eval()


def _pass(model: Any, arguments: tuple[Any, ...], factor: float) -> None:
    """Run on the inputs and on them times a factor, as a batch; detectors take several pictures."""
    import torch

    with torch.no_grad():
        if hasattr(model, "detector"):
            model.detector([*arguments, *(factor * a for a in arguments)])
        else:
            model(*(torch.cat([a, factor * a]) if a.ndim > 3 else a for a in arguments))


def _make_torch(export: Export) -> Any:
    from benchmarks.models.export_modules import MODULES

    return MODULES[export.model]()


def _make_timm(export: Export) -> Any:
    import timm
    import torch

    model = timm.create_model(export.model, exportable=True, **export.options)
    head = model.get_classifier()
    if hasattr(head, "weight") and not head.weight.any():  # some begin with zeros
        torch.nn.init.normal_(head.weight, std=0.02)
    return model


def _make_smp(export: Export) -> Any:
    import segmentation_models_pytorch

    return getattr(segmentation_models_pytorch, export.model)(**export.options)


def _make_torchvision(export: Export) -> Any:
    import torch
    import torchvision

    topic, _, model = export.model.rpartition(".")
    module = getattr(torchvision.models, topic) if topic else torchvision.models
    options = dict(export.options)
    if topic == "detection":
        options["weights_backbone"] = None
    updates = options.pop("num_flow_updates", None)
    made = getattr(module, model)(weights=None, **options)
    if topic == "segmentation":
        return _chosen(made, lambda found: found["out"])
    if topic == "optical_flow":
        return _chosen(
            made, lambda found: found[-1], lambda *pair: made(*pair, num_flow_updates=updates)
        )
    if topic == "detection":
        for name, layer in made.named_modules():
            convolution = "cls_logits" in name and isinstance(layer, torch.nn.Conv2d)
            if convolution or name.endswith(".cls_score"):
                torch.nn.init.normal_(layer.weight, std=6 / layer.weight[0].numel() ** 0.5)
            if convolution:  # RetinaNet's and FCOS's start is 1 % for every class
                torch.nn.init.constant_(layer.bias, -1.5)
        listed = _chosen(
            made,
            lambda found: tuple(found[0][name] for name in export.outputs),
            lambda image: made([image]),
        )
        listed.detector = made  # takes several pictures at once
        return listed
    return made


def _chosen(
    inner: Any, choose: Callable[[Any], Any], call: Callable[..., Any] | None = None
) -> Any:
    """A module around a call of another, of whose outputs it takes some."""
    import torch

    called = call or inner

    class Chosen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *inputs: Any) -> Any:
            return choose(called(*inputs))

    return Chosen()


_MAKERS: dict[str, Callable[[Export], Any]] = {
    "torch": _make_torch,
    "timm": _make_timm,
    "segmentation-models-pytorch": _make_smp,
    "torchvision": _make_torchvision,
}


def _write_ultralytics(export: Export, path: Path) -> None:
    import tempfile

    os.environ.update(YOLO_AUTOINSTALL="false", YOLO_OFFLINE="true", YOLO_VERBOSE="false")
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["YOLO_CONFIG_DIR"] = scratch
        os.chdir(scratch)
        import torch
        import ultralytics

        kind = ultralytics.RTDETR if export.model.startswith("rtdetr") else ultralytics.YOLO
        model = kind(f"{export.model}.yaml")
        _liven(model.model)
        shape, values = export.inputs["images"]
        image = torch.from_numpy(make_input(shape, values, "float32", 0))
        _settle(model.model, (image,))
        options = dict(export.options)
        made = model.export(format="onnx", imgsz=list(shape[2:]), opset=17, **options)
        Path(made).rename(path)
        os.chdir("/")


def _liven(model: Any) -> None:
    """Give the scores of a detector's head a spread; at first all are about 1e-5."""
    import torch

    head = model.model[-1]
    for name in ("cv3", "one2one_cv3"):
        for branch in getattr(head, name, None) or ():
            last = branch[-1]
            torch.nn.init.normal_(last.weight, std=0.5 / last.weight[0].numel() ** 0.5)
            torch.nn.init.constant_(last.bias, -1.5)


JOBS: dict[str, Job] = {"write": _write}
