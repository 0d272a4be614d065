"""Registry of operators: all that the compiler knows of one, declared in one place.

A family of operators is a module of :mod:`tvm_edge.ops`, which calls :func:`register`. Names are
ONNX's (``"Relu"``, ``"com.example.Unit"``), whose facts the importer asks for, and Relax's
(``"relax.nn.relu"``, ``"tvm_edge.scan"``), whose facts the passes ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

import tvm
from tvm import relax, tirx

from tvm_edge.ops.converter import Converter
from tvm_edge.ops.flops import Formula
from tvm_edge.ops.kernel_site import KernelSite

__all__ = [
    "FOLLOWS",
    "OPERATORS",
    "PERFORMS",
    "PERFORMS_STATIC",
    "PRODUCT",
    "Fitness",
    "Float16",
    "Operator",
    "call",
    "find",
    "of_call",
    "register",
    "relax_names",
]

InferType = Callable[[relax.Call, relax.BlockBuilder], relax.Type]
Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
Lowering = Callable[[KernelSite, relax.Call], relax.Expr]
Blocks = Literal["unary", "nary", "image", "regroups"]


@dataclass(frozen=True)
class Fitness:
    """Fitness of an operator for GPUs, by kind of device: the list of ``fallback="list"``.

    ICPP'19 (§3.1.2) keeps a list of operators that are known to perform and sends all others to the
    CPU, those that nobody has looked at among them. Here the list has most of Relax, as there are
    kernels for what GPUs are bad at by themselves: sorts, scans, suppression
    (``benchmarks/RESULTS.md`` has their figures). What works on each element by itself is listed
    without a figure.

    It goes by no traits of a single device. A device without local memory, and one that is a CPU,
    has schedules of its own; a type that a device does not calculate in is the policy's
    ``lacking``.

    Attributes
    ----------
    performs : frozenset of {"opencl", "cuda"}
        Kinds of devices on which it is known to perform.
    left_out : str
        Why the list leaves out an operator that a GPU would run.
    impossible : str
        Why there is no kernel for GPUs.
    static : bool
        Whether kernels for GPUs are written for one shape.
    """

    performs: frozenset[str] = frozenset()
    left_out: str = ""
    impossible: str = ""
    static: bool = False

    def why_left_out(self, kind: str) -> str:
        """Return why ``fallback="list"`` moves the operator to the CPU; empty if it stays."""
        if kind in self.performs:
            return ""
        if self.left_out:
            return f"left out of the list of operators that perform on {kind}: {self.left_out}"
        return f"not in the list of operators that are known to perform on {kind}"


# Both kinds share their schedules.
PERFORMS = Fitness(performs=frozenset({"opencl", "cuda"}))
PERFORMS_STATIC = replace(PERFORMS, static=True)


@dataclass(frozen=True)
class Float16:
    """Use of an operator on float16 tensors; operators without one stay float32.

    These have none: softmax, exponentials, logarithms and powers, squares and sums, whose results
    leave the range of float16; the statistics of normalisations; quotients by what is computed;
    whatever finds places rather than values (sorts, arg-maxima, suppression, decoding of boxes,
    samplers), as the last bits decide there.

    Attributes
    ----------
    is_product : bool
        Whether it is worth a conversion of its operands: it does the work and has the weights.
        Others follow: they are float16 where the tensors that they read are.
    arithmetic : callable, optional
        The operator on two numbers. A constant operand then stays float32 where it is shared by
        many elements: a bias or a scale. They are some KiB of a model, and rounded they would be a
        third of its error (``python -m benchmarks run precision``).
    """

    is_product: bool = False
    arithmetic: Callable[[tirx.Expr, tirx.Expr], tirx.Expr] | None = None


PRODUCT = Float16(is_product=True)
FOLLOWS = Float16()


@dataclass(frozen=True)
class Operator:
    """Facts of an operator, as :func:`register` takes them; ``Operator()`` is an unknown one."""

    convert: Converter | None = None
    settings: Collection[int] = ()
    forming: Collection[int] = ()
    stored_types: bool = False
    infer_type: InferType | None = None
    lower: Lowering | None = None
    legalize: Legalization | None = None
    gpu: Fitness = Fitness()
    float16: Float16 | None = None
    blocks: Blocks | None = None
    flops: Formula | None = None


OPERATORS: dict[str, Operator] = {}
"""Operators by name; :func:`register` alone changes it."""


def register(
    *names: str,
    convert: Converter | None = None,
    settings: Collection[int] = (),
    forming: Collection[int] = (),
    stored_types: bool = False,
    infer_type: InferType | None = None,
    lower: Lowering | None = None,
    legalize: Legalization | None = None,
    gpu: Fitness | None = None,
    float16: Float16 | None = None,
    blocks: Blocks | None = None,
    flops: Formula | None = None,
) -> None:
    """Declare facts of operators. A fact that is not given stays as it is.

    Parameters
    ----------
    *names : str
        ONNX's operators by their type, those of another domain as ``"com.example.Unit"``; Relax's
        by their full name.
    convert : callable, optional
        ONNX: converter ``(builder, inputs, attributes) -> relax.Expr``, asked before TVM's.
    settings : collection of int
        ONNX: positions of floating-point operands that are settings, not parameters of a network.
    forming : collection of int
        ONNX: positions of operands whose values decide shapes, or the form of a kernel.
    stored_types : bool
        ONNX: whether it takes types that are stored and not computed with, such as float8.
    infer_type : callable, optional
        Relax: ``(call, builder) -> relax.Type`` of a composite operator, which becomes a pure
        operator of this name.
    lower : callable, optional
        Relax: ``(site, call) -> relax.Expr`` replaces a call by its kernels once it is placed
        (:mod:`tvm_edge.relay_passes.lower.lower_operators`).
    legalize : callable, optional
        Relax: ``(builder, call) -> relax.Expr`` makes one kernel, in place of TVM's, that others
        can be fused with (:mod:`tvm_edge.relay_passes.lower.legalize`).
    gpu : Fitness, optional
        Relax: fitness for GPUs. Build a kernel and measure it before it :data:`PERFORMS`.
    float16 : Float16, optional
        Relax: use on float16 tensors with ``precision="mixed"``.
    blocks : {"unary", "nary", "image", "regroups"}, optional
        Relax: use on images in channel blocks (NCHW16c): element by element of one or more images,
        on an image by a rule of its own, or by moving whole channels.
    flops : callable, optional
        Both: arithmetic operations of a run (:mod:`tvm_edge.ops.flops`).
    """
    given: dict[str, Any] = {
        "convert": convert,
        "settings": settings,
        "forming": forming,
        "stored_types": stored_types,
        "infer_type": infer_type,
        "lower": lower,
        "legalize": legalize,
        "gpu": gpu,
        "float16": float16,
        "blocks": blocks,
        "flops": flops,
    }
    facts = {fact: value for fact, value in given.items() if value}
    for name in names:
        OPERATORS[name] = replace(find(name), **facts)
        if infer_type is not None:
            tvm.ir.register_op_attr(name, "FInferType", infer_type)
            tvm.ir.register_op_attr(name, "FPurity", True)


def find(name: str) -> Operator:
    """Return the facts of an operator; there are none of a name that nobody registered."""
    return OPERATORS.get(name, Operator())


def of_call(value: relax.Expr | None) -> Operator:
    """Return the facts of the operator that an expression calls; there are none of others."""
    if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
        return find(str(value.op.name))
    return Operator()


def relax_names(names: str) -> list[str]:
    """Split a line of names of Relax's operators, written without ``relax.``."""
    return [f"relax.{name}" for name in names.split()]


def call(name: str, args: list[relax.Expr], **attrs: Any) -> relax.Call:
    """Call a composite operator with named attributes."""
    return relax.Call(tvm.ir.Op.get(name), args, tvm.ir.make_node("ir.DictAttrs", **attrs))
