"""What every frontend hands to the compiler."""

from __future__ import annotations

from dataclasses import dataclass

import tvm

from tvm_edge.report import TensorSpec

__all__ = ["ImportedModel", "SourceNode"]


@dataclass(frozen=True)
class SourceNode:
    """An operator of the user's model, by the name the user knows it by."""

    name: str
    op_type: str


@dataclass(frozen=True)
class ImportedModel:
    """A model in the compiler's normal form.

    Attributes
    ----------
    name : str
        For reports; taken from the file or the graph.
    module : tvm.IRModule
        One Relax function ``main`` whose parameters are exactly `inputs`, in order, with static
        shapes; weights are constants in its body.
    inputs, outputs : tuple[TensorSpec, ...]
        The user's names; Relax variables may be called otherwise.
    nodes : tuple[SourceNode, ...]
        The user's operators. The Relax variable that holds the result of node ``i`` is called
        ``n<i>`` (Relax may append ``_<k>``), which is how a report finds its way back.
    folded : tuple[SourceNode, ...]
        Operators that do not depend on the inputs and are constants of `module`.
    warnings : tuple[str, ...]
        What the user should know and may ignore.
    """

    name: str
    module: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: tuple[SourceNode, ...] = ()
    folded: tuple[SourceNode, ...] = ()
    warnings: tuple[str, ...] = ()
