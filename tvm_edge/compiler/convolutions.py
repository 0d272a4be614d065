"""Algorithms and knobs of convolutions: the caller's, or those of tuning records."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import tvm
from tvm import relax

from tvm_edge.hardware import ResolvedTarget
from tvm_edge.records import RecordDevice, RecordLibrary, user_folder
from tvm_edge.relay_passes.ir.expressions import all_bindings
from tvm_edge.relay_passes.ir.locations import node_of
from tvm_edge.relay_passes.ir.vdevices import vdevice_of
from tvm_edge.relay_passes.ir.workloads import FLOATS
from tvm_edge.relay_passes.layout.int8_convolution import convolution_at
from tvm_edge.report import RecordsInfo
from tvm_edge.schedules.conv_config import ConfigSpace, ConvConfig
from tvm_edge.schedules.conv_records import config_of, config_space, recorded_workload
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu import algorithm as cpu_algorithm
from tvm_edge.schedules.gpu import algorithm as gpu_algorithm
from tvm_edge.schedules.layouts import usual_block

__all__ = [
    "ConvChoices",
    "TuningLogs",
    "avoid_winograd",
    "choose_convolutions",
    "convolutions",
]

TuningLogs = str | os.PathLike[str] | bool | None
"""A folder or file, ``False`` for no records, ``None`` for the user's; as in ``compile``."""

Origin = Literal["tuned", "transferred"]

_NAMED = 20  # records that a report names as ignored

# A GPU of the same vendor may have a tenth of the cores: what filled the one, in parts and small
# tiles, is then a loss. The best of a space is within the cost model's first so many as a rule.
_PLAUSIBLE = 32


@dataclass(frozen=True)
class ConvChoices:
    """Configurations of convolutions that are not left to the heuristic.

    Attributes
    ----------
    configs : dict of ConvWorkload to ConvConfig
    origins : dict of int to str
        By node of the model ``tuned`` or ``transferred``.
    info : RecordsInfo or None
    warnings : tuple of str
        Stores of records that could not be read.
    """

    configs: Mapping[ConvWorkload, ConvConfig] = field(default_factory=dict)
    origins: Mapping[int, Origin] = field(default_factory=dict)
    info: RecordsInfo | None = None
    warnings: tuple[str, ...] = ()

    def with_ignored(self, more: tuple[str, ...]) -> RecordsInfo | None:
        """Return the info to report, with more records that were ignored."""
        info = self.info
        return info and replace(info, ignored=(*info.ignored, *more))


def choose_convolutions(
    mod: tvm.IRModule,
    resolved: ResolvedTarget,
    tuning_logs: TuningLogs,
    given: Mapping[ConvWorkload, ConvConfig],
    precision: str = "float32",
) -> ConvChoices:
    """The configurations of a placed module's convolutions, as far as somebody measured them.

    Parameters
    ----------
    mod : tvm.IRModule
        Its convolutions still are operators.
    resolved : ResolvedTarget
    tuning_logs : path, False or None
    given : mapping of ConvWorkload to ConvConfig
        What the caller measured: goes before records.
    precision : str
    """
    found = list(convolutions(mod, resolved, tf32=precision == "tf32"))
    workloads = dict.fromkeys(workload for workload, _ in found)
    configs = dict(given)
    origins: dict[ConvWorkload, Origin] = dict.fromkeys(given, "tuned")
    ignored: dict[str, None] = {}
    warnings: tuple[str, ...] = ()
    if found and not isinstance(tuning_logs, bool):
        device = RecordDevice.of(resolved.spec)
        with RecordLibrary(device, user_folder(tuning_logs)) as library:
            for workload in workloads:
                if workload not in configs:
                    origin = _from_records(workload, resolved, library, configs, ignored)
                    if origin is not None:
                        origins[workload] = origin
            warnings = library.warnings
    by_node = {
        node: origins[workload]
        for workload, node in found
        if workload in origins and node is not None
    }
    info = None
    if found and (tuning_logs is not False or given):
        named = [origins.get(workload) for workload, _ in found]
        reasons = list(ignored)
        if len(reasons) > _NAMED:
            reasons[_NAMED:] = [f"… and {len(reasons) - _NAMED} more records"]
        info = RecordsInfo(
            len(named), named.count("tuned"), named.count("transferred"), tuple(reasons)
        )
    return ConvChoices(configs, by_node, info, warnings)


def _from_records(
    workload: ConvWorkload,
    resolved: ResolvedTarget,
    library: RecordLibrary,
    configs: dict[ConvWorkload, ConvConfig],
    ignored: dict[str, None],
) -> Origin | None:
    """Take the first record that holds; those before it are `ignored`, with why.

    A record with another channel block than a CPU's vector registers counts only where there is no
    other. Its cost between two convolutions depends on the whole network, for which nobody has
    chosen layouts. A record with channel blocks on a GPU counts on tensor cores alone: of others
    the graph tuner uses those.
    """
    space = None
    usual = usual_block(resolved.spec, workload)
    other: ConvConfig | None = None
    for found in library.candidates(recorded_workload(workload), resolved.kind):
        if other is not None and found.origin == "transferred":
            break
        if not resolved.spec.has_cpu_cores and found.record.config.get("block", usual) != usual:
            continue
        space = space or config_space(workload, resolved.spec)
        try:
            config = config_of(found.record, space, resolved.spec)
            _check_transfer(config, found.origin, space, resolved)
        except ValueError as err:
            ignored[f"{_words(workload)} of {found.record.device.key} ({found.path}): {err}"] = None
            continue
        if _has_usual_block(config, workload, resolved):
            configs[workload] = config
            return found.origin
        other = other or config
    if other is None:
        return None
    configs[workload] = other
    return "tuned"


def _has_usual_block(config: ConvConfig, workload: ConvWorkload, resolved: ResolvedTarget) -> bool:
    return config.block in (0, usual_block(resolved.spec, workload))


def _check_transfer(
    config: ConvConfig, origin: Origin, space: ConfigSpace, resolved: ResolvedTarget
) -> None:
    """Refuse what suits another device alone.

    Another CPU's channel block does not fit: it fills two vector registers here, or half of one.
    Nor does another GPU's tile that the cost model ranks after many others on this one.

    Raises
    ------
    ValueError
    """
    spec = resolved.spec
    if origin == "tuned":
        return
    if not _has_usual_block(config, space.workload, resolved):
        raise ValueError(
            f"it is in blocks of {config.block} channels, and a register of {spec.name} has "
            f"{spec.lanes()}"
        )
    if not spec.has_cpu_cores and config.knobs and config not in space.top(_PLAUSIBLE):
        raise ValueError(
            f"it was fastest there, and by its cost model {spec.name} has {_PLAUSIBLE} better "
            "ones; tune on the device"
        )


def convolutions(
    mod: tvm.IRModule,
    resolved: ResolvedTarget,
    dtypes: Collection[str] = ("float32",),
    *,
    tf32: bool = False,
) -> Iterator[tuple[ConvWorkload, int | None]]:
    """Convolutions on the target's device, with the node of the model that each belongs to.

    Of tensors of `dtypes`, of int8 where the device has an instruction for it, and of what its
    tensor cores multiply, float32 among it with `tf32`.
    """
    pending: list[ConvWorkload] = []
    bound: dict[relax.Var, relax.Expr] = {}
    for binding in all_bindings(mod["main"].body):
        bound[binding.var] = binding.value
        workload = convolution_at(binding.value, bound, resolved.spec, dtypes, tf32=tf32)
        if workload is not None:
            device = vdevice_of(binding.value.ty)
            if device is None or str(device.target.kind.name) == resolved.kind:
                pending.append(workload)
        node = node_of(binding.var)
        if node is not None:  # what a node computes in several steps ends with its result
            yield from ((workload, node) for workload in pending)
            pending.clear()
    yield from ((workload, None) for workload in pending)


def _words(workload: ConvWorkload) -> str:
    image = (workload.batch, workload.channels, workload.height, workload.width)
    kernel = "×".join(str(size) for size in workload.kernel)
    return f"the record of a {kernel} convolution of {list(image)} to {workload.filters} channels"


def avoid_winograd(
    chosen: ConvChoices, mod: tvm.IRModule, resolved: ResolvedTarget, precision: str
) -> ConvChoices:
    """Choose another configuration for each convolution that would be by Winograd's algorithm.

    For a model that has to do with less memory: transformed images have 2.25 to 4 times their
    bytes, and transformed weights 1.8 to 4 times theirs.

    Parameters
    ----------
    chosen : ConvChoices
    mod : tvm.IRModule
        Placed; its convolutions still are operators.
    resolved : ResolvedTarget
    precision : str
    """
    found = list(convolutions(mod, resolved, FLOATS))
    configs = dict(chosen.configs)
    changed = set()
    for workload in dict.fromkeys(workload for workload, _ in found):
        config = configs.get(workload) or _chosen(workload, resolved, precision, winograd=True)
        if config.algorithm == "winograd":
            configs[workload] = _chosen(workload, resolved, precision, winograd=False)
            changed.add(workload)
    nodes = {node for workload, node in found if workload in changed}
    origins = {node: origin for node, origin in chosen.origins.items() if node not in nodes}
    return replace(chosen, configs=configs, origins=origins)


def _chosen(
    workload: ConvWorkload, resolved: ResolvedTarget, precision: str, *, winograd: bool
) -> ConvConfig:
    spec = resolved.spec
    if spec.has_cpu_cores:
        if precision == "float16" and spec.float16:
            workload = replace(workload, dtype="float16")
        return cpu_algorithm.choose_config(workload, spec, winograd=winograd)
    return gpu_algorithm.choose_config(workload, spec, precision, winograd=winograd)
