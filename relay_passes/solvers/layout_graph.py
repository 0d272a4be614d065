"""A network as a problem of layouts: which layouts each operator may have, and what it reads.

Says of a function what :class:`~tvm_edge.relay_passes.layout.block_layout.BlockLayout` can make of
it. Operators that only move channels (splits, shuffles, concatenations that do not fill blocks)
hold their sources to their own layout, and are copied when somebody reads them. Convolutions of
8-bit images have one layout, and operators that round their accumulators have it too: the others
are chosen around them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, prod

import tvm
from tvm import relax

from tvm_edge.hardware import DeviceSpec
from tvm_edge.ops.elementwise.slopes import channel_slopes
from tvm_edge.ops.registry import of_call
from tvm_edge.relay_passes.ir.expressions import bindings_of, constant_of, is_call, static_shape
from tvm_edge.relay_passes.ir.workloads import Int8Conv, conv_workload, int8_conv
from tvm_edge.relay_passes.layout.int8_convolution import int8_convs
from tvm_edge.relay_passes.solvers.layout_problem import LayoutNode, LayoutProblem, Read, digest
from tvm_edge.schedules.blocked import fills
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.int8 import BLOCK
from tvm_edge.schedules.layouts import block_sizes, image_block

__all__ = ["LayoutGraph", "LayoutPlan", "layout_graph"]

_PLAIN = 0
_WINDOWS = ("relax.nn.avg_pool2d", "relax.nn.max_pool2d")


@dataclass(frozen=True)
class LayoutGraph:
    """The operators of a function, in order.

    Attributes
    ----------
    nodes : tuple of LayoutNode
        Parameters first; the last one reads the results.
    variables : tuple of relax.Var or None
        What each operator's result is bound to.
    convolutions : dict of int to ConvWorkload
        Of those operators that are convolutions with a choice.
    calls : dict of int to relax.Call
        Of the same.
    fixed : frozenset of int
        Operators that are convolutions of 8-bit images.
    gathers : frozenset of (int, int)
        Operators and layouts in which they only say where channels are.
    copies : frozenset of int
        Operators that copy in NCHW, and in blocks do not.
    spec : DeviceSpec
        Whose layouts they are.
    """

    nodes: tuple[LayoutNode, ...]
    variables: tuple[relax.Var | None, ...]
    convolutions: dict[int, ConvWorkload]
    calls: dict[int, relax.Call]
    fixed: frozenset[int]
    gathers: frozenset[tuple[int, int]]
    copies: frozenset[int]
    spec: DeviceSpec

    @property
    def digest(self) -> str:
        """Names the network."""
        return digest(self.nodes)

    def problem(
        self,
        seconds: Sequence[Sequence[float]],
        transforms: Sequence[Mapping[tuple[int, int], float]],
    ) -> LayoutProblem:
        """The network with the latencies of its operators and transforms."""
        return LayoutProblem(self.nodes, tuple(map(tuple, seconds)), tuple(transforms))

    def fits(self, layouts: Sequence[int]) -> bool:
        """Return whether these are layouts of its operators that go together."""
        if len(layouts) != len(self.nodes):
            return False
        if any(x not in node.layouts for x, node in zip(layouts, self.nodes, strict=True)):
            return False
        nothing = [[0.0] * len(node.layouts) for node in self.nodes]
        wanted = {_PLAIN} | {x for n in self.nodes for read in n.reads for x in read.layouts}
        free: list[dict[tuple[int, int], float]] = [
            {(a, b): 0.0 for a in node.layouts for b in wanted} for node in self.nodes
        ]
        return isfinite(self.problem(nothing, free).total(layouts))


@dataclass(frozen=True)
class LayoutPlan:
    """Layouts and configurations chosen for the whole of a network.

    Attributes
    ----------
    network : str
        The digest of its :class:`LayoutGraph`.
    layouts : tuple of int
        By operator the channels in a block, 0 for NCHW.
    configs : mapping of int to ConvConfig
        Of the convolutions in blocks.
    """

    network: str
    layouts: tuple[int, ...]
    configs: Mapping[int, ConvConfig]


def layout_graph(func: relax.Function, spec: DeviceSpec) -> LayoutGraph:
    """Graph of the layouts that a function's images may have on a device.

    Parameters
    ----------
    func : relax.Function
        Simplified; convolutions still are operators.
    spec : DeviceSpec
        A CPU, or an OpenCL device that is one: its vector registers say which blocks there are. On
        other GPUs nothing moves single channels of blocks: what does, moves them in NCHW.
    """
    bindings = bindings_of(func)
    builder = _Builder(spec, *int8_convs(func, spec))
    for param in func.params:
        builder.add(param, "parameter", (_PLAIN,))
    for binding in bindings:
        builder.visit(binding.var, binding.value)
    builder.add_plain(None, "results", func.body.body)
    return builder.graph()


@dataclass
class _Builder:
    spec: DeviceSpec
    whole: Mapping[relax.Var, Int8Conv]
    absorbed: Collection[relax.Var]
    nodes: list[LayoutNode] = field(default_factory=list)
    variables: list[relax.Var | None] = field(default_factory=list)
    convolutions: dict[int, ConvWorkload] = field(default_factory=dict)
    calls: dict[int, relax.Call] = field(default_factory=dict)
    fixed: set[int] = field(default_factory=set)
    gathers: set[tuple[int, int]] = field(default_factory=set)
    copies: set[int] = field(default_factory=set)
    _number: dict[relax.Var, int] = field(default_factory=dict)
    _tuples: dict[relax.Var, list[relax.Expr]] = field(default_factory=dict)
    _splits: dict[relax.Var, relax.Call] = field(default_factory=dict)

    def graph(self) -> LayoutGraph:
        return LayoutGraph(
            tuple(self.nodes),
            tuple(self.variables),
            self.convolutions,
            self.calls,
            frozenset(self.fixed),
            frozenset(self.gathers),
            frozenset(self.copies),
            self.spec,
        )

    def visit(self, var: relax.Var, value: relax.Expr) -> None:
        if isinstance(value, relax.Tuple):
            self._tuples[var] = list(value.fields)
            return
        if var in self.absorbed:
            return
        if var in self.whole:
            self._conv2d_int8(var, self.whole[var])
            return
        if self._conv2d(var, value) or self._moves(var, value) or self._follows(var, value):
            return
        # A GPU has int8 kernels in NCHW alone.
        fixed = None if self.spec.has_cpu_cores else int8_conv(value, {})
        if fixed is None:
            self.add_plain(var, _name(value), value)
        else:
            self.fixed.add(self.add_plain(var, _conv_name(fixed.workload), value))

    def add(
        self,
        var: relax.Var | None,
        what: str,
        layouts: tuple[int, ...],
        reads: Sequence[Read] = (),
    ) -> int:
        shape = self._image(var) if var is not None else None
        dims = "" if var is None else str(static_shape(var.ty))
        number = len(self.nodes)
        self.nodes.append(LayoutNode(f"{what} {dims}", layouts, tuple(reads), shape or ()))
        self.variables.append(var)
        if var is not None:
            self._number[var] = number
        return number

    def add_plain(self, var: relax.Var | None, what: str, value: relax.Expr) -> int:
        """Add an operator that reads and writes NCHW, whatever it is."""
        sources = dict.fromkeys(s for v in relax.analysis.free_vars(value) for s in self._of(v))
        reads = [Read.any_way(source, (_PLAIN,)) for source in sources]
        return self.add(var, what, (_PLAIN,), reads)

    def _of(self, var: relax.Var) -> list[int]:
        """The operators whose results a variable holds, those of a tuple's fields included."""
        if var in self._number:
            return [self._number[var]]
        if var in self._splits:
            return self._of(self._splits[var].args[0])
        fields = [f for f in self._tuples.get(var, ()) if isinstance(f, relax.Var)]
        return [source for part in fields for source in self._of(part)]

    def _source(self, expr: relax.Expr) -> int | None:
        """The operator of an image."""
        if not isinstance(expr, relax.Var) or self._image(expr) is None:
            return None
        return self._number.get(expr)

    def _blocks(self, channels: int) -> tuple[int, ...]:
        sizes = (*block_sizes(self.spec), *([BLOCK] if self.whole else []))
        return tuple(block for block in dict.fromkeys(sizes) if fills(channels, block))

    def _image(self, var: relax.Expr) -> tuple[int, ...] | None:
        """The shape of an NCHW image, of float32 or, beside int8 convolutions, whole numbers."""
        shape = static_shape(var.ty)
        dtypes = ("float32", "int8", "uint8", "int32") if self.whole else ("float32",)
        if shape is None or len(shape) != 4 or 0 in shape or str(var.ty.dtype) not in dtypes:
            return None
        return shape

    # ------------------------------------------------------------------------------- operators

    def _conv2d(self, var: relax.Var, value: relax.Expr) -> bool:
        found = conv_workload(value)
        source = None if found is None else self._source(value.args[0])
        if found is None or source is None:
            return False
        workload, _ = found
        depths = {b: image_block(workload, b, self.spec) for b in block_sizes(self.spec)}
        blocks = [block for block, depth in depths.items() if depth]
        layouts = (_PLAIN, *blocks)
        if len(layouts) == 1:
            return False
        # Images of few channels are read one by one: NCHW as it is.
        taken = tuple(x if x and depths[x] > 1 else _PLAIN for x in layouts)
        number = self.add(var, f"conv2d {workload}", layouts, [Read.any_way(source, taken)])
        self.convolutions[number] = workload
        self.calls[number] = value
        return True

    def _conv2d_int8(self, var: relax.Var, found: Int8Conv) -> None:
        """One layout, and nothing to choose; its padding is part of it."""
        source = self._source(found.image)
        reads = [] if source is None else [Read.any_way(source, (found.block,))]
        self.fixed.add(self.add(var, _conv_name(found.workload), (BLOCK,), reads))

    def _follows(self, var: relax.Var, value: relax.Expr) -> bool:
        """Operators that take blocks as they are."""
        shape = self._image(var)
        if shape is None or not isinstance(value, relax.Call):
            return False
        if not isinstance(value.op, tvm.ir.Op):
            return False
        name, layouts = str(value.op.name), (_PLAIN, *self._blocks(shape[1]))
        blocks = of_call(value).blocks
        if name == "relax.concat":
            return self._concat(var, value)
        if blocks == "nary":
            return self._nary(var, value, shape)
        source = self._source(value.args[0]) if len(value.args) else None
        if source is None:
            return False
        if blocks == "unary" and any(_size(arg) > 1 for arg in value.args[1:]):
            return False  # one number for each channel
        if blocks == "unary":
            # Part of the kernel before, unless that one only says where channels are.
            own = self.nodes[source].layouts
            if any(i == source for i, _ in self.gathers):
                self.add(var, name, layouts, [Read.any_way(source, layouts)])
            else:
                self.add(var, name, own, [Read(source, own, (True,) * len(own))])
            return True
        if not _takes_blocks(value):
            return False
        self.add(var, _name(value), layouts, [Read.any_way(source, layouts)])
        return True

    def _nary(self, var: relax.Var, call: relax.Call, shape: tuple[int, ...]) -> bool:
        sources = []
        for arg in call.args:
            if constant_of(arg) is not None:
                continue
            source = self._source(arg)
            # An image of one channel, broadcast, has no blocks.
            if source is None or self.nodes[source].shape[1] != shape[1]:
                return False
            sources.append(source)
        layouts = (_PLAIN, *self._blocks(shape[1]))
        if len(sources) == 1 and len(self.nodes[sources[0]].layouts) == 1:
            layouts = self.nodes[sources[0]].layouts
        reads = [Read.any_way(source, layouts) for source in dict.fromkeys(sources)]
        self.add(var, str(call.op.name), layouts, reads)
        return bool(sources)

    def _concat(self, var: relax.Var, call: relax.Call) -> bool:
        parts = self._parts(call)
        sources = [self._source(part) for part in parts]
        known = [source for source in sources if source is not None]
        if not known or len(known) < len(sources) or int(call.attrs.axis) % 4 != 1:
            return False
        moved = any(i in known for i, _ in self.gathers)
        sizes = [self.nodes[source].shape[1] for source in known]
        layouts, gathered = [_PLAIN], []
        for block in self._blocks(sum(sizes)):
            whole = not moved and not any(size % block for size in sizes[:-1])
            possible = self.spec.has_cpu_cores and all(
                block in self.nodes[source].layouts for source in known
            )
            if whole or possible:
                layouts.append(block)
                gathered.append(not whole)
        held = (False, *gathered)
        reads = [Read(source, tuple(layouts), held) for source in dict.fromkeys(known)]
        number = self.add(var, "concat", tuple(layouts), reads)
        if self.spec.has_cpu_cores:  # parts of others are written in place in any layout
            self.copies.add(number)
        pairs = zip(layouts[1:], gathered, strict=True)
        self.gathers.update((number, block) for block, is_gathered in pairs if is_gathered)
        return True

    def _parts(self, call: relax.Call) -> list[relax.Expr]:
        parts = call.args[0]
        if isinstance(parts, relax.Var):
            return self._tuples.get(parts, [parts])
        return list(parts.fields) if isinstance(parts, relax.Tuple) else [parts]

    # --------------------------------------------------------------------------- moved channels

    def _moves(self, var: relax.Var, value: relax.Expr) -> bool:
        """Splits along channels, and shuffles: a reshape into groups, a transposition, and back."""
        if is_call(value, "relax.split"):
            self._splits[var] = value
            return True
        if isinstance(value, relax.TupleGetItem):
            return self._section(var, value)
        if not is_call(value, "relax.reshape", "relax.permute_dims"):
            return False
        given = value.args[0]
        source = self._number.get(given) if isinstance(given, relax.Var) else None
        if source is None:
            return False
        before, after = static_shape(given.ty), static_shape(var.ty)
        if before is None or after is None or not self._keeps_pixels(value, before, after):
            return False
        self._add_moved(var, _name(value), source)
        return True

    def _section(self, var: relax.Var, value: relax.TupleGetItem) -> bool:
        split = self._splits.get(value.tuple_value)
        if split is None:
            return False
        source = self._source(split.args[0])
        if source is None or int(split.attrs.axis) % 4 != 1:
            self.add_plain(var, "split", split.args[0])
        else:
            self._add_moved(var, f"split {value.index}", source)
        return True

    def _add_moved(self, var: relax.Var, what: str, source: int) -> None:
        layouts = self.nodes[source].layouts if self.spec.has_cpu_cores else (_PLAIN,)
        held = tuple(bool(layout) for layout in layouts)
        number = self.add(var, what, layouts, [Read(source, layouts, held)])
        self.gathers.update((number, layout) for layout in layouts if layout)

    def _keeps_pixels(
        self, call: relax.Call, before: tuple[int, ...], after: tuple[int, ...]
    ) -> bool:
        if is_call(call, "relax.reshape"):
            pixels = len(before) > 3 and len(after) > 3 and before[-2:] == after[-2:]
            return pixels and before[0] == after[0] and prod(before) > 0
        rank = len(after)
        axes = [int(axis) for axis in call.attrs.axes or range(rank - 1, -1, -1)]
        return rank > 3 and axes[0] == 0 and axes[-2:] == [rank - 2, rank - 1]


def _size(arg: relax.Expr) -> int:
    """Elements of a constant, 0 of anything else."""
    value = constant_of(arg)
    return 0 if value is None else int(value.size)


def _takes_blocks(call: relax.Call) -> bool:
    if is_call(call, *_WINDOWS):
        return bool(call.attrs.layout == call.attrs.out_layout == "NCHW")
    if is_call(call, "relax.image.resize2d"):
        return bool(call.attrs.layout == "NCHW")
    if is_call(call, "relax.nn.prelu"):
        return channel_slopes(call) is not None
    if is_call(call, "relax.mean"):
        axes = sorted(int(axis) % 4 for axis in call.attrs.axis or [])
        return axes == [2, 3] and bool(call.attrs.keepdims)
    return False


def _conv_name(workload: ConvWorkload) -> str:
    """Name of a convolution of 8-bit images."""
    return f"conv2d {workload} {workload.dtype}"


def _name(value: relax.Expr) -> str:
    """The operator, and its windows where it has some."""
    if not isinstance(value, relax.Call):
        return type(value).__name__
    name = str(getattr(value.op, "name", "function"))
    if is_call(value, *_WINDOWS):
        attrs = value.attrs
        sizes = [[int(n) for n in own] for own in (attrs.pool_size, attrs.strides, attrs.padding)]
        return f"{name} {sizes}"
    return name
