"""ONNX's own test cases, and what became of one of them."""

from __future__ import annotations

import hashlib
import math
import pickle
import re
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import platformdirs
from onnx import TensorProto
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner
from onnx.numpy_helper import to_array

import tvm_edge
from tvm_edge import CompiledModel, TvmEdgeError, onnx_backend
from tvm_edge.files import whole_file

__all__ = ["PASS", "Outcome", "load_cases", "operator_of", "outcome", "run_case", "sample"]

PASS = "pass"


@cache
def load_cases() -> dict[str, TestCase]:
    """Every case of a single operator, by name.

    onnx calculates all of their results, which takes five seconds: they are kept on disk.
    """
    path = (
        platformdirs.user_cache_path("tvm-edge") / f"onnx-cases-{onnx.__version__}-{np.__version__}"
    )
    with suppress(OSError, EOFError, pickle.UnpicklingError):
        return pickle.loads(path.read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx divides by zero on purpose
        cases = {case.name: case for case in load_model_tests(kind="node")}
    with suppress(OSError):  # calculated again the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            pickle.dump(cases, file)
    return cases


def operator_of(case: TestCase) -> str:
    """The operator that a case is about; those of its expansion into others count apart."""
    name = re.sub(r"_expanded(_ver\d+)?$", "", case.name)
    original = load_cases().get(name, case)
    node = original.model.graph.node[-1]
    label = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{label} (expanded)" if name != case.name else label


def sample() -> list[str]:
    """The names in ``conformance.txt``: a rule that knows nothing of what passes.

    Operators of ONNX's own domain with tensors for inputs, expansions left out: of n cases of an
    operator the first √n, in the order of their names' hashes.
    """
    by_operator: dict[str, list[str]] = {}
    for name, case in load_cases().items():
        inputs = case.data_sets[0][0]
        if "_expanded" in name or not inputs:
            continue
        if any(node.domain for node in case.model.graph.node):
            continue
        if all(isinstance(value, np.ndarray) for value in inputs):
            by_operator.setdefault(operator_of(case), []).append(name)
    names = []
    for members in by_operator.values():
        members.sort(key=lambda name: hashlib.sha256(name.encode()).hexdigest())
        names += members[: math.isqrt(len(members))]
    return sorted(names)


class _Reloaded(onnx_backend.TvmEdgeRep):
    """A prepared model that runs what it reads back from a file."""

    def _compile(self, *args: Any) -> CompiledModel:
        with tempfile.TemporaryDirectory() as folder:
            path = super()._compile(*args).export(Path(folder) / "case.tvme")
            return tvm_edge.load(path)


def run_case(case: TestCase, device: str) -> str:
    """Run a case as ONNX's runner does, from an exported and loaded artifact.

    Returns
    -------
    str
        ``TvmEdgeRep.kind``.

    Raises
    ------
    TvmEdgeError
        Refused.
    AssertionError
        A wrong result, beyond the case's tolerances.
    """
    kind = ""
    for inputs, results in case.data_sets:
        # Types that NumPy lacks come as protocol buffers.
        arrays = [to_array(i) if isinstance(i, TensorProto) else i for i in inputs]
        expected = [to_array(e) if isinstance(e, TensorProto) else e for e in results]
        checked = onnx_backend.TvmEdgeBackend.checked(case.model, device)
        prepared = _Reloaded(checked, device, {})
        outputs = prepared.run(arrays)
        flat = _tensors(expected), _tensors(outputs)
        assert _structure(expected) == _structure(outputs)
        Runner.assert_similar_outputs(*flat, case.rtol, case.atol)
        kind = prepared.kind
    return kind


def _tensors(values: Any) -> list[Any]:
    """The tensors in sequences, one after the other.

    ONNX's runner does not compare the lengths of sequences, and takes no scalars in them.
    """
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in _tensors(value)]
    return [] if values is None else [values]


def _structure(values: Any) -> Any:
    if isinstance(values, (list, tuple)):
        return [_structure(value) for value in values]
    return values is None


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes
    ----------
    name : str
    outcome : str
        ``pass``, ``wrong``, ``crashed`` or the name of a TvmEdgeError.
    detail : str
        One line about it.
    kind : str
        ``static``, ``specialised`` or ``dynamic``, of a case that passes.
    """

    name: str
    outcome: str
    detail: str = ""
    kind: str = ""


def outcome(case: TestCase, device: str) -> Outcome:
    """Run a case, whatever comes of it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Outcome(case.name, PASS, kind=run_case(case, device))
    except TvmEdgeError as err:
        return Outcome(case.name, type(err).__name__, _line(err))
    except AssertionError as err:
        return Outcome(case.name, "wrong", _line(err))
    except Exception as err:
        return Outcome(case.name, "crashed", f"{type(err).__name__}: {_line(err)}")


def _line(err: BaseException) -> str:
    return " ".join(str(err).split())[:400]
