"""Work-groups that the rules choose, beside every other size.

The paper's convolution and depthwise convolution (APSys'20, figure 5) and ten layers of the zoo, or
with ``--unseen`` eight others that nobody looked at while the rules were written, as the direct
kernel without local memory. A kernel is built once and takes its work-group from the call; each
size that the rules may choose from is run, its result compared (the first one's with ONNX
Runtime's, the others' with the first one's) and then timed.

- distribution of times, and the share of sizes within 15 % of the best (figure 5; ``--png FILE``);
- what the rules choose, with rule V in its general form and in the paper's, against the best,
  the median of all (a random choice), and TVM's default: as many work-items as its
  ``DefaultGPUSchedule`` puts into a group, first along x, then y, then z;
- the importance score of each rule (equation 8, table 3);
- how long it takes to choose, and to try all (table 2).

Dense convolutions read an image that is padded already. ``--most N`` tries a sample of the sizes:
pocl builds a kernel anew for each.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, mean, median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common.correctness import relative_error
from benchmarks.common.machine import describe_machine
from benchmarks.common.onnx_runtime import onnxruntime_function
from benchmarks.common.options import Among, Parser, chosen_numbers, save_json
from benchmarks.gpu.workloads import UNSEEN_WORK_GROUPS, WORK_GROUPS, Layer

_COMPETITIVE = 1.15  # the paper's: within 15 % of the best
_REPEATS = 3
_FASTEST, _ROUNDS = 10, 7
_LEAST_US = 300.0  # of one timing
_TVM_ITEMS = 1024  # DefaultGPUSchedule's max_threads_per_block
_RULES = ("I", "II", "III", "IV", "V")
_PAPER = "paper's V"
_COLOURS = ("tab:blue", "tab:green")


def _model(layer: Layer) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    floats, generator = TensorProto.FLOAT, np.random.default_rng(0)
    before = 0 if layer.groups > 1 else layer.padding
    side = layer.size + 2 * before
    filters = generator.standard_normal(layer.shapes["w"]).astype("float32")
    filters /= np.sqrt(filters[0].size)
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        strides=[layer.stride] * 2,
        pads=[layer.padding - before] * 4,
        group=layer.groups,
    )
    shapes = {"x": (1, layer.channels, side, side)}
    shapes["y"] = (1, layer.outputs, layer.result, layer.result)
    x, y = (helper.make_tensor_value_info(name, floats, shape) for name, shape in shapes.items())
    graph = helper.make_graph([node], "layer", [x], [y], [numpy_helper.from_array(filters, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _kernel(model: Any, resolved: Any) -> tuple[Any, np.ndarray]:
    """The convolution taken apart, and its filters as it reads them."""
    from tvm import tirx

    from tvm_edge.compiler.compilation import Compilation
    from tvm_edge.compiler.options import Options
    from tvm_edge.compiler.pipeline import PIPELINE
    from tvm_edge.frontend import load_model
    from tvm_edge.relay_passes.ir.expressions import constant_of
    from tvm_edge.schedules.gpu.direct_conv import DirectConv

    # Without local memory, and filters packed for it.
    spec = replace(resolved.spec, local_memory_kind="global", on_cpu=False)
    imported = load_model(model, None)
    options, device = Options(fallback="none"), replace(resolved, spec=spec)
    begun = Compilation(imported, device, options, module=imported.module)
    fused = PIPELINE.part(until="ConcatAtOffsets").run(begun).module
    (found,) = (
        conv
        for _, func in fused.functions_items()
        if isinstance(func, tirx.PrimFunc) and (conv := DirectConv.of(func)) is not None
    )
    (filters,) = (
        value
        for block in fused["main"].body.blocks
        for binding in block.bindings
        for arg in getattr(binding.value.args[1], "fields", [])
        if (value := constant_of(arg)) is not None
    )
    return found, filters


class _Sweep:
    """All times of a layer on a device.

    Attributes
    ----------
    us : dict of WorkGroup to float
    best : float
    chosen : dict of str to WorkGroup
        By how it was chosen.
    choosing_ms, trying_s : float
    obeying : list of list of WorkGroup
        By rule, those that obey it.
    """

    def __init__(self, layer: Layer, target: str, most: int) -> None:
        import tvm

        from tvm_edge.hardware import resolve_target
        from tvm_edge.lowering import opencl_intrinsics
        from tvm_edge.lowering.cuda_compiler import cuda_compiler
        from tvm_edge.schedules import workgroup
        from tvm_edge.schedules.gpu.direct import direct_kernel

        resolved, model = resolve_target(target), _model(layer)
        spec = resolved.spec
        conv, filters = _kernel(model, resolved)
        tile = conv.choose_tile(spec)
        problem = conv.problem(tile)
        paper = replace(problem, form="depthwise" if layer.groups > 1 else "conv")
        start = perf_counter()
        choice = workgroup.choose_work_group(problem, spec)
        self.choosing_ms = 1e3 * (perf_counter() - start)
        self.chosen = {"rules": choice, _PAPER: workgroup.choose_work_group(paper, spec)}
        self.chosen["TVM's default"] = _default(problem, spec)
        sizes = workgroup.possible_work_groups(problem, spec)
        self.possible = len(sizes)
        if most and len(sizes) > most:
            sizes = random.Random(0).sample(sizes, most)
        sizes = list(dict.fromkeys([*self.chosen.values(), *sizes]))
        self.obeying = [[] for _ in _RULES]
        for size in sizes:
            for i, penalty in enumerate(workgroup.penalties(paper, size, spec)):
                # "Approximately" is within a factor of two.
                if penalty <= (0.5 if i == 4 else 0.0):
                    self.obeying[i].append(size)

        func = direct_kernel(conv, tile, None, spec)
        arch = str(resolved.target.attrs["arch"]) if target == "cuda" else ""
        if target == "opencl":
            opencl_intrinsics.register()
        with cuda_compiler(arch) if arch else nullcontext(), resolved.target:
            built = tvm.compile(func.with_attr("global_symbol", "conv"), target=resolved.target)
        with tempfile.TemporaryDirectory() as folder:
            built.export_library(str(Path(folder, "conv.so")))
            library = tvm.runtime.load_module(str(Path(folder, "conv.so")))
        x = np.random.default_rng(1).standard_normal([d.dim_value for d in _shape(model)])
        x = x.astype("float32")
        (expected,) = onnxruntime_function(model)({"x": x}).values()
        device = tvm.device(target, 0)
        given = [tvm.runtime.tensor(array, device) for array in (x, filters)]
        start = perf_counter()
        self.us: dict[Any, float] = {}
        first, arguments = None, {}
        unset = np.full_like(expected, np.nan)
        out = tvm.runtime.tensor(unset, device)
        for size in sizes:
            items = [tvm.runtime.empty((n,), "int8", device) for n in size.sizes]
            out.copyfrom(unset)
            tensors = [*given, *items, out]
            library["conv"](*tensors)
            actual = out.numpy()
            if first is None:
                error = relative_error(actual, expected)
                if not error <= 1e-5:
                    raise SystemExit(f"{layer} is wrong by {error:.1e}")
                first = actual
            if not np.array_equal(first, actual):
                raise SystemExit(f"{layer} is wrong in groups of {size.sizes}")
            self.us[size] = _time(library, device, tensors)
            arguments[size] = tensors
        self.trying_s = perf_counter() - start
        # The best of hundreds of noisy times is too good: the fastest and the chosen ones again,
        # in turns.
        fastest = sorted(self.us, key=self.us.__getitem__)[:_FASTEST]
        again = dict.fromkeys([*fastest, *self.chosen.values()])
        rounds = [
            {size: _time(library, device, arguments[size]) for size in again}
            for _ in range(_ROUNDS)
        ]
        for size in again:
            self.us[size] = median(found[size] for found in rounds)
        self.best = min(self.us[size] for size in again)

    def slower(self, how: str) -> float:
        """Time of a choice over the best."""
        return self.us[self.chosen[how]] / self.best

    @property
    def competitive(self) -> float:
        """Share of sizes within 15 % of the best."""
        return mean(int(us <= _COMPETITIVE * self.best) for us in self.us.values())

    def importance(self, rule: int) -> float:
        """Equation 8: how far from the worst those are that obey a rule, 1 being the best."""
        worst = max(self.us.values())
        return mean((worst - self.us[s]) / (worst - self.best) for s in self.obeying[rule])

    def to_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return {
            "possible": self.possible,
            "us": {str(size.sizes): us for size, us in self.us.items()},
            "best_us": self.best,
            "chosen": {how: size.sizes for how, size in self.chosen.items()},
            "chosen_us": {how: self.us[size] for how, size in self.chosen.items()},
            "importance": [
                self.importance(i) if self.obeying[i] else None for i in range(len(_RULES))
            ],
            "choosing_ms": self.choosing_ms,
            "trying_s": self.trying_s,
        }


def _shape(model: Any) -> Sequence[Any]:
    return model.graph.input[0].type.tensor_type.shape.dim


def _default(problem: Any, spec: Any) -> Any:
    """Groups as TVM's ``DefaultGPUSchedule`` makes them: full ones of neighbours."""
    from tvm_edge.schedules.workgroup import WorkGroup, most_items

    left, sizes = min(_TVM_ITEMS, most_items(problem, spec)), []
    for extent in problem.space:
        sizes.append(min(extent, left))
        left = max(left // sizes[-1], 1)
    return WorkGroup(*sizes)


def _time(library: Any, device: Any, tensors: Sequence[Any]) -> float:
    """Microseconds of a launch; what one costs by itself is part of it."""
    once = library.time_evaluator("conv", device, number=1, repeat=1)(*tensors).mean * 1e6
    number = max(1, min(50, round(_LEAST_US / max(once, 1.0))))
    timer = library.time_evaluator("conv", device, number=number, repeat=_REPEATS)
    return float(timer(*tensors).median) * 1e6


def _report(sweeps: Mapping[Layer, _Sweep]) -> None:
    ways = ("rules", _PAPER, "TVM's default")
    print(
        "\n| layer | sizes tried, of | best, µs | worst | median | within 15 % | rules / best "
        "| paper's V / best | TVM's default / best | random / best | chosen | best |"
    )
    print("|" + "---|" * 12)
    for layer, sweep in sweeps.items():
        times = sweep.us
        best = next(size for size, us in times.items() if us == sweep.best)
        ratios = " | ".join(f"{sweep.slower(way):.2f}" for way in ways)
        middle = median(times.values())
        print(
            f"| {layer} | {len(times)}, {sweep.possible} | {sweep.best:.1f} "
            f"| {max(times.values()):.1f} | {middle:.1f} | {sweep.competitive:.0%} | {ratios} "
            f"| {middle / sweep.best:.2f} | {sweep.chosen['rules'].sizes} | {best.sizes} |"
        )
    for way in ways:
        found = [sweep.slower(way) for sweep in sweeps.values()]
        near = sum(ratio <= _COMPETITIVE for ratio in found)
        over = geometric_mean(
            sweep.slower("TVM's default") / sweep.slower(way) for sweep in sweeps.values()
        )
        print(
            f"- {way}: within 15 % of the best on **{near} of {len(found)}**, "
            f"{geometric_mean(found):.3f} of the best in geometric mean, worst {max(found):.2f}; "
            f"**{over:.2f}x** TVM's default"
        )
    over = geometric_mean(median(s.us.values()) / s.us[s.chosen["rules"]] for s in sweeps.values())
    print(f"- rules over a random choice: {over:.2f}x")
    longest = max(sweep.choosing_ms for sweep in sweeps.values())
    trying = sum(sweep.trying_s for sweep in sweeps.values())
    print(f"- to choose: at most **{longest:.1f} ms** a kernel; to try: {trying:.0f} s in all")
    print("\n| importance of rule | " + " | ".join(_RULES) + " |")
    print("|" + "---|" * (len(_RULES) + 1))
    kinds: dict[str, Callable[[Layer], bool]] = {
        "convolutions": lambda layer: layer.groups == 1,
        "depthwise": lambda layer: layer.groups > 1,
    }
    for name, belongs in kinds.items():
        own = [sweep for layer, sweep in sweeps.items() if belongs(layer)]
        scores = [[s.importance(i) for s in own if s.obeying[i]] for i in range(len(_RULES))]
        cells = [f"{mean(score):.2f}" if score else "none obeys" for score in scores]
        if own:
            print(f"| {name} | {' | '.join(cells)} |")


def _draw(sweeps: Mapping[Layer, _Sweep], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(3, 4, figsize=(16, 9))
    for panel, (layer, sweep) in zip(panels.flat, sweeps.items(), strict=False):
        panel.hist([us / sweep.best for us in sweep.us.values()], bins=40, color="lightgrey")
        for way, colour in zip(("rules", _PAPER), _COLOURS, strict=True):
            panel.axvline(sweep.slower(way), color=colour, label=way)
        panel.axvline(sweep.slower("TVM's default"), color="tab:red", label="TVM's default")
        panel.set(title=str(layer), xlabel="time / best", ylabel="work-group sizes")
    panels.flat[0].legend()
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    from tvm_edge.hardware import resolve_target

    parser = Parser("workgroup", __doc__)
    parser.shared(target=Among("opencl", ("cuda", "opencl")), layers=None, png=None, json=None)
    parser.add_argument("--most", type=int, default=0, help="sizes to try of a layer; 0: all")
    parser.add_argument("--unseen", action="store_true")
    options = parser.parse_args(arguments)
    every = UNSEEN_WORK_GROUPS if options.unseen else WORK_GROUPS
    numbers = chosen_numbers(parser, "--layers", options.layers, len(every))
    name = resolve_target(options.target).spec.name
    machine = {**describe_machine(), "device": name, "target": options.target}
    print(json.dumps(machine))
    sweeps = {}
    for layer in (every[number] for number in numbers):
        sweeps[layer] = sweep = _Sweep(layer, options.target, options.most)
        print(
            f"{layer}: rules {sweep.slower('rules'):.2f}, paper's V {sweep.slower(_PAPER):.2f}, "
            f"{sweep.trying_s:.0f} s",
            flush=True,
        )
    _report(sweeps)
    if options.png is not None:
        _draw(sweeps, f"{options.target}: {name}", options.png)
    found = {
        str(layer): {"depthwise": layer.groups > 1, **sweep.to_dict()}
        for layer, sweep in sweeps.items()
    }
    save_json(options.json, {"machine": machine, "layers": found})
