"""Errors of the nodes of a model, from builds of ours and a reference's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvm_edge.errors import one_line
from tvm_edge.workflow.bisect_passes import trial_error, try_passes
from tvm_edge.workflow.comparison import (
    FLOAT16_MAX,
    OVERFLOW,
    Comparison,
    NodeError,
    error_of,
)
from tvm_edge.workflow.dump_part import dump_part
from tvm_edge.workflow.group_errors import in_halves, joined, output_bits, value_range
from tvm_edge.workflow.kernel_tensors import tensors_of_kernels
from tvm_edge.workflow.node_groups import Graph, Group, with_outputs
from tvm_edge.workflow.references import Build, Reference

__all__ = ["NodeErrors"]

_HALVES = ("float16", "mixed")


class NodeErrors:
    """One comparison, from the deployed build to the errors of its nodes."""

    def __init__(
        self,
        graph: Graph,
        build: Build,
        deployed: Any,
        inputs: dict[str, np.ndarray],
        reference: Reference,
        tolerance: float,
    ) -> None:
        self._graph, self._build, self._deployed = graph, build, deployed
        self._inputs, self._reference, self._tolerance = inputs, reference, tolerance
        self._expected = {**inputs, **reference.tensors}
        self._remarks: dict[int, str] = {}
        self._kernels = self._kernels_of_nodes()
        self._groups = self._comparable(self._grouped())
        self._of_node = {node: group for group in self._groups for node in group.nodes}

    def run(self) -> Comparison:
        """Run the builds, and put the errors together."""
        expected = self._expected
        final = self._deployed.run(self._inputs)
        observing, results = self._build.compile_handing_out(self._graph.proto)
        returned = observing.run(self._inputs)
        observed = tensors_of_kernels(self._groups, self._graph, results, returned, expected)
        made = self._errors_made(self._stored(observed), {**self._inputs, **observed})
        alone = self._errors_alone(self._comparable(self._graph.singles()))
        nodes = tuple(
            self._row(number, observed, made, alone) for number in range(len(self._graph.nodes))
        )
        outputs = tuple(
            output_bits(name, final[name], returned[name], expected.get(name))
            for name in self._graph.outputs
        )
        missing: tuple[str, ...] = ()
        if not all(output.same for output in outputs):
            there = {(k.operators, k.rule) for k in observing.report.kernels}
            kernels = self._deployed.report.kernels
            missing = tuple(k.name for k in kernels if (k.operators, k.rule) not in there)
        report = self._deployed.report
        precision = str(self._build.options.get("precision", "float32"))
        placed = "" if report.target.startswith("llvm") else report.placement_line()
        remote = self._build.remote
        board = "" if remote is None else f"it ran on board {remote.name}"
        notes = tuple(filter(None, (placed, board, self._reference.note)))
        return Comparison(
            report.model,
            report.target,
            precision,
            self._reference.name,
            self._tolerance,
            nodes,
            outputs,
            missing,
            notes=notes,
        )

    def trials(self, comparison: Comparison) -> tuple[Any, ...]:
        """Compile what is wrong without one pass at a time.

        The kernel alone where it is wrong by itself too, which is quick, else the whole model.
        """
        group = self._culprit(comparison)
        if group is not None:
            part = self._graph.part([group], self._expected)
            build = self._build.of_parts()
            wanted = {part.outputs[name]: self._expected[name] for name in group.ends}
            if trial_error(build, part.model, part.inputs, wanted) > self._tolerance:
                return try_passes(build, part.model, part.inputs, wanted, self._tolerance)
        ends = self._graph.outputs if group is None else group.ends
        wanted = {name: self._expected[name] for name in ends if name in self._expected}
        model = with_outputs(self._graph.proto, wanted, self._expected)
        return try_passes(self._build, model, self._inputs, wanted, self._tolerance)

    def dumped(self, comparison: Comparison, folder: Path) -> tuple[str, ...]:
        """Write the kernel that makes the error, or the first node over the tolerance."""
        group = self._culprit(comparison)
        row = comparison.culprit or comparison.first
        if group is None and row is not None:
            group = self._of_node.get(self._graph.position[row.node])
        if group is None or row is None:
            return ()
        expected = {name: self._expected[name] for name in group.ends}
        return dump_part(folder, row.node, self._graph.part([group], self._expected), expected)

    def _culprit(self, comparison: Comparison) -> Group | None:
        row = comparison.culprit
        return None if row is None else self._of_node.get(self._graph.position[row.node])

    def _kernels_of_nodes(self) -> dict[int, Any]:
        """The last kernel that computes each node."""
        position = self._graph.position
        return {
            position[name]: kernel
            for kernel in self._deployed.report.kernels
            for name in kernel.operators
            if name in position
        }

    def _grouped(self) -> list[Group]:
        """Nodes that share kernels, as groups in the order of the model."""
        graph, position = self._graph, self._graph.position
        shared = [
            [position[name] for name in kernel.operators if name in position]
            for kernel in self._deployed.report.kernels
        ]
        members_of = joined(len(graph.nodes), shared, self._kernels)
        # Of what became a table of bytes the last node alone has the kernel.
        free = set(range(len(graph.nodes))) - set(self._kernels)
        for members in members_of.values():
            for number in graph.between(members, free):
                self._kernels[number] = self._kernels[members[-1]]
                members.append(number)
        # Nodes that were written out as others have no kernel by their own names.
        known = {operator.name for operator in self._deployed.report.operators}
        for number, node in enumerate(graph.nodes):
            if node.name not in known and number not in self._kernels:
                members_of[number] = [number]
        groups = [graph.group(nodes) for _, nodes in sorted(members_of.items())]
        return [group for group in groups if group.ends]

    def _comparable(self, groups: Sequence[Group]) -> list[Group]:
        """Drop what the reference has no value of: strings, sequences, what was folded there."""
        kept = []
        for group in groups:
            ends = tuple(name for name in group.ends if name in self._expected)
            if ends:
                kept.append(Group(group.nodes, ends))
        return kept

    def _stored(self, observed: Mapping[str, np.ndarray]) -> list[Group]:
        """Groups with those of their ends that are stored, and what rounds after them."""
        groups = []
        for group in self._groups:
            ends = tuple(name for name in group.ends if name in observed)
            if ends:
                groups.append(Group(group.nodes, ends))
        for number, node in enumerate(self._graph.nodes):
            rounds = node.op_type in ("QuantizeLinear", "DequantizeLinear")
            if rounds and node.output[0] in observed and number not in self._kernels:
                groups.append(Group((number,), (node.output[0],)))
                maker = self._graph.producer(node.input[0])
                if node.op_type == "DequantizeLinear":
                    maker = self._graph.producer(self._graph.nodes[maker].input[0])
                if maker in self._kernels:
                    self._kernels[number] = self._kernels[maker]
                if maker in self._of_node:
                    closed = self._graph.closed(Group((number,), (node.output[0],)), observed)
                    self._of_node[number] = closed
        return groups

    def _errors_made(
        self, groups: Sequence[Group], ours: Mapping[str, np.ndarray]
    ) -> dict[int, float]:
        """Errors of kernels from the reference on the same inputs, by each of their nodes."""
        known = {name: value for name, value in ours.items() if name in self._graph.running}

        def errors(some: Sequence[Group]) -> dict[int, float]:
            closed = [self._graph.closed(group, known) for group in some]
            part = self._graph.part(closed, known, typed=self._reference.build is not None)
            found = self._reference.run(part)
            return {
                node: max(error_of(known[n], found[part.outputs[n]]) for n in group.ends)
                for group in some
                for node in group.nodes
            }

        return in_halves(groups, errors, lambda group, err: None)

    def _errors_alone(self, groups: Sequence[Group]) -> dict[int, float]:
        """Errors of nodes by themselves on the reference's inputs."""
        build = self._build.of_parts()

        def errors(some: Sequence[Group]) -> dict[int, float]:
            part = self._graph.part(some, self._expected)
            found = build.run(part.model, part.inputs)
            return {
                group.nodes[0]: max(
                    error_of(found[part.outputs[n]], self._expected[n]) for n in group.ends
                )
                for group in some
            }

        def refused(group: Group, err: Exception) -> None:
            self._remarks[group.nodes[0]] = f"not run alone: {one_line(err, 120)}"

        return in_halves(groups, errors, refused)

    def _row(
        self,
        number: int,
        observed: Mapping[str, np.ndarray],
        made: Mapping[int, float],
        alone: Mapping[int, float],
    ) -> NodeError:
        node = self._graph.nodes[number]
        kernel = self._kernels.get(number)
        expected = {n: self._expected[n] for n in node.output if n in self._expected}
        errors = [(error_of(observed[n], expected[n]), n) for n in expected if n in observed]
        error, tensor = max(errors, default=(None, next(iter(expected), "")))
        low, high = value_range(list(expected.values()))
        found = ""
        if error is not None and error > self._tolerance:
            found = "made here" if made.get(number, 0.0) > self._tolerance else "inherited"
        return NodeError(
            node.name,
            node.op_type,
            kernel.name if kernel else "",
            kernel.rule if kernel else "",
            tensor,
            error,
            alone.get(number),
            made.get(number),
            low,
            high,
            found,
            self._remark(number, observed, expected, low, high),
        )

    def _remark(
        self,
        number: int,
        observed: Mapping[str, np.ndarray],
        expected: Mapping[str, np.ndarray],
        low: float | None,
        high: float | None,
    ) -> str:
        """Name what is not finite, and what float16 cannot hold."""
        remarks = [self._remarks[number]] if number in self._remarks else []
        if low is None or high is None or not expected:
            return "; ".join(remarks)
        span = f"the reference is in {low:.6g} … {high:.6g}"
        halves = self._build.options.get("precision") in _HALVES
        if halves and max(abs(low), abs(high)) > FLOAT16_MAX and self._is_half(number):
            remarks.append(f"{OVERFLOW}{span}, float16 ends at ±{FLOAT16_MAX:g}")
        for name, value in expected.items():
            ours = observed.get(name)
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                what = "NaN" if np.isnan(value).any() else "infinity"
                half = " (float16 overflow)" if value.dtype == np.float16 else ""
                remarks.append(f"the reference itself has {what} in {name!r}{half}")
            elif ours is not None and ours.dtype.kind == "f" and not np.isfinite(ours).all():
                what = "NaN" if np.isnan(ours).any() else "infinity"
                remarks.append(f"{what} in {name!r}, and {span}")
        return "; ".join(remarks)

    def _is_half(self, number: int) -> bool:
        """Return whether the deployed build has the results of a node in float16."""
        precision = self._deployed.report.precision
        name = self._graph.nodes[number].name
        return precision is not None and precision.operators.get(name) == "float16"
