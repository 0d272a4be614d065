"""Normal form of a model: every frontend hands it to the compiler."""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm

from tvm_edge.report import ModelPart, TensorSpec, UnsupportedInfo

__all__ = ["ImportedModel", "NodeCost", "SourceNode", "Survey"]


@dataclass(frozen=True)
class NodeCost:
    """Cost of one operator by its definition; ``None`` where that is not known.

    Attributes
    ----------
    flops : int or None
        See :mod:`tvm_edge.ops.flops`.
    parameters : int
        Elements of its constant operands, without settings such as a shape or a limit.
    weight_bytes : int
        Bytes of its constant operands, settings included.
    input_bytes, output_bytes : int or None
        Bytes of the operands that a run computes, and of the results.
    """

    flops: int | None = None
    parameters: int = 0
    weight_bytes: int = 0
    input_bytes: int | None = None
    output_bytes: int | None = None


@dataclass(frozen=True)
class SourceNode:
    """An operator of the user's model, by the name the user knows it by.

    `inputs` are the positions of the operators whose results it reads, each once.
    """

    name: str
    op_type: str
    cost: NodeCost = field(default=NodeCost(), compare=False)
    inputs: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class ImportedModel:
    """A model in the compiler's normal form.

    Attributes
    ----------
    name : str
        For reports; taken from the file or the graph.
    module : tvm.IRModule
        One Relax function ``main`` whose parameters are exactly `inputs`, in order; weights are
        constants in its body. Open dimensions are variables, one for each name.
    inputs, outputs : tuple[TensorSpec, ...]
        The user's names; Relax variables may be called otherwise.
    nodes : tuple[SourceNode, ...]
        The user's operators. The Relax variable that holds the result of one is located at its
        position (:mod:`tvm_edge.relay_passes.ir.locations`).
    folded : tuple[SourceNode, ...]
        Operators that do not depend on the inputs and are constants of `module`.
    warnings : tuple[str, ...]
        What the user should know and may ignore.
    parts : tuple[ModelPart, ...]
        The models that it is made of, if it was given as several.
    """

    name: str
    module: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: tuple[SourceNode, ...] = ()
    folded: tuple[SourceNode, ...] = ()
    warnings: tuple[str, ...] = ()
    parts: tuple[ModelPart, ...] = ()

    @property
    def typical(self) -> dict[str, int]:
        """Typical lengths of the open dimensions, by the names of their variables.

        Of several models, whose variables do not have the model in their names, the last one's.
        """
        dims = [dim for spec in self.inputs for dim in spec.dims]
        lengths = {dim.name: dim.typical or max(dim.min, 1) for dim in dims}
        return {name.rpartition("/")[2]: n for name, n in lengths.items()} | lengths

    @property
    def largest(self) -> dict[str, int]:
        """Largest lengths of the open dimensions that have one, by the names of their variables.

        Of several models, whose variables do not have the model in their names, the largest.
        """
        found: dict[str, int] = {}
        for dim in (dim for spec in self.inputs for dim in spec.dims):
            if dim.largest is not None:
                for name in (dim.name, dim.name.rpartition("/")[2]):
                    found[name] = max(found.get(name, 0), dim.largest)
        return found


@dataclass(frozen=True)
class Survey:
    """Facts of a model that cannot be imported, because operators are not implemented.

    Attributes
    ----------
    name : str
    nodes, folded : tuple[SourceNode, ...]
        As in :class:`ImportedModel`.
    unsupported : tuple[UnsupportedInfo, ...]
    warnings : tuple[str, ...]
    """

    name: str
    nodes: tuple[SourceNode, ...]
    folded: tuple[SourceNode, ...]
    unsupported: tuple[UnsupportedInfo, ...]
    warnings: tuple[str, ...] = ()
