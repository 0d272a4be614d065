"""``tools/static_counts.py`` counts what its rules say."""

import ast
from pathlib import Path

import pytest

from tools import static_counts
from tools.static_counts import Module, circular_imports, device_kinds, long_functions

ROOT = Path(__file__).parent.parent


def modules(**sources: str) -> dict[str, Module]:
    """Parsed modules of tvm_edge/compiler/, by name."""
    return {
        f"tvm_edge.compiler.{name}": Module(
            f"tvm_edge/compiler/{name}.py", f"tvm_edge.compiler.{name}", ast.parse(source)
        )
        for name, source in sources.items()
    }


@pytest.mark.parametrize(
    "source",
    [
        'resolved.kind == "opencl"',
        'kind not in ("llvm", other)',
        "int(device.dlpack_device_type()) == DLDeviceType.kDLOpenCL",
        'f({"cuda": 1})',
        'match kind:\n    case "gpu":\n        pass',
        'floors["cpu"]',
        'floors.get("cpu")',
        'is_kind(device, "llvm")',
        'target.startswith("llvm")',
        '_HOST: str = "llvm"\nkind != _HOST',
        'GPUS = frozenset(("cuda", "opencl"))\nkind in GPUS',
    ],
)
def test_a_test_for_a_kind_of_device(source: str) -> None:
    assert len(list(device_kinds(modules(one=source)))) == 1


@pytest.mark.parametrize(
    "source",
    [
        'tvm.device("opencl", 0)',
        'def f(kind: str = "llvm") -> Literal["cpu", "gpu"]: ...',
        'config = {"kind": "llvm"}',
        "spec.runs_on_cpu_cores",
        '_DENSE = {"Gemm"}\nkind in _DENSE',
    ],
)
def test_no_test_for_a_kind_of_device(source: str) -> None:
    assert not list(device_kinds(modules(one=source)))


def test_constants_are_followed_to_where_they_are_imported() -> None:
    found = device_kinds(
        modules(
            one='GPUS = ("cuda", "opencl")',
            two="from tvm_edge.compiler.one import GPUS\nkind in GPUS",
            three="GPUS = ()\nkind in GPUS",
        )
    )
    assert [place.path for place in found] == ["tvm_edge/compiler/two.py"]


def test_functions_over_60_lines() -> None:
    body = "\n    pass"
    source = f"def short():{body * 59}\ndef long():{body * 60}\n"
    assert [p.what for p in long_functions(modules(one=source))] == ["long: 61 lines"]


def test_circular_imports() -> None:
    name = "tvm_edge.compiler"
    found = circular_imports(
        modules(
            one=f"from {name}.two import f",
            two=f"def f():\n    from {name} import three",
            three=f"import {name}.one",
            four=f"import {name}.one",
        )
    )
    (circle,) = found
    assert circle.path.count("<->") == 2 and "four" not in circle.path


def test_every_file_of_the_product_is_counted_once() -> None:
    found = [module.path for module in static_counts.read_modules(ROOT).values()]
    assert len(found) == len(set(found))
    assert {"schedules/grid.py", "tvm_edge/__init__.py"} <= set(found)
    assert not any(path.startswith("tvm_edge/schedules/") for path in found)
