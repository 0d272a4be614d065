"""ONNX's own test cases, and what became of one of them."""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from functools import cache

import numpy as np
from onnx import TensorProto
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner
from onnx.numpy_helper import to_array

from tvm_edge import TvmEdgeError, onnx_backend

__all__ = ["load_cases", "operator_of", "outcome", "run_case", "sample"]

PASS = "pass"


@cache
def load_cases() -> dict[str, TestCase]:
    """Every case of a single operator, by name; takes five seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx divides by zero on purpose
        return {case.name: case for case in load_model_tests(kind="node")}


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


def run_case(case: TestCase, device: str) -> None:
    """Run a case as ONNX's runner does.

    Raises
    ------
    TvmEdgeError
        Refused.
    AssertionError
        A wrong result, beyond the case's tolerances.
    """
    for inputs, results in case.data_sets:
        # Types that NumPy lacks come as protocol buffers.
        arrays = [to_array(i) if isinstance(i, TensorProto) else i for i in inputs]
        expected = [to_array(e) if isinstance(e, TensorProto) else e for e in results]
        outputs = onnx_backend.prepare(case.model, device).run(arrays)
        Runner.assert_similar_outputs(expected, outputs, case.rtol, case.atol)


def outcome(case: TestCase, device: str) -> tuple[str, str]:
    """``pass``, ``wrong``, ``crashed`` or the name of a TvmEdgeError, and one line about it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run_case(case, device)
    except TvmEdgeError as err:
        return type(err).__name__, _line(err)
    except AssertionError as err:
        return "wrong", _line(err)
    except Exception as err:
        return "crashed", f"{type(err).__name__}: {_line(err)}"
    return PASS, ""


def _line(err: BaseException) -> str:
    return " ".join(str(err).split())[:400]
