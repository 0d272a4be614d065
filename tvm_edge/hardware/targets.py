"""Targets: from any form that a user may write to TVM's Target and a DeviceSpec."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm.target import codegen

from tvm_edge.errors import InputError, near_matches
from tvm_edge.hardware.boards import BOARDS
from tvm_edge.hardware.cpu import cpu_spec, native_cpu
from tvm_edge.hardware.gpu import describe_gpu, this_gpu
from tvm_edge.hardware.kinds import GPU_KINDS, KINDS, GpuKind, TargetKind
from tvm_edge.hardware.presets import PRESETS
from tvm_edge.hardware.spec import DeviceSpec
from tvm_edge.host import CODEGEN_FEATURES, machine

__all__ = ["ResolvedTarget", "resolve_target"]

_ARCHITECTURES = ("x86_64", "aarch64")
_TRIPLES = tuple(f"{architecture}-linux-gnu" for architecture in _ARCHITECTURES)
# What all of x86-64 has; told to do without one of them, LLVM may end the process.
_BASE = frozenset({"64bit", "64bit-mode", "sse", "sse2"})
_SCHEDULED_AS = {"cortex-a55": "cortex-a53"}
# Compilers' names of Arm's extensions (-march=armv8.2-a+fp16) that are not LLVM's.
_OTHER_NAMES = {"fp16": "fullfp16", "simd": "neon", "fp": "fp-armv8"}


@dataclass(frozen=True)
class ResolvedTarget:
    """A target to compile for.

    Attributes
    ----------
    target : tvm.target.Target
        With the host inside.
    spec : DeviceSpec
        Properties of the device that decide how kernels are written.
    features : frozenset[str]
        Features of the host's CPU that the code may use, in LLVM's names, among those a loader can
        check.
    triple : str
        LLVM triple of the host code.
    host : ResolvedTarget or None
        The CPU beside a GPU; ``None`` where the target is a CPU.
    """

    target: tvm.target.Target
    spec: DeviceSpec
    features: frozenset[str]
    triple: str
    host: ResolvedTarget | None = None

    @property
    def architecture(self) -> str:
        """The first part of the triple, ``x86_64`` or ``aarch64``."""
        return self.triple.split("-")[0]

    @property
    def kind(self) -> str:
        """TVM's name of the kind of target: ``llvm``, ``opencl``, ``cuda``."""
        return str(self.target.kind.name)

    @property
    def facts(self) -> TargetKind:
        """Facts that the kind decides."""
        return KINDS[self.kind]

    @property
    def cpu(self) -> ResolvedTarget:
        """The CPU: the target itself, or the host of a GPU."""
        return self.host or self

    @property
    def shared(self) -> frozenset[str]:
        """Accesses of the host to tensors of the device where they are: ``read``, ``write``."""
        if not self.facts.maps_memory or not self.spec.unified_memory:
            return frozenset()
        return frozenset(("read", "write") if self.spec.fine_grained_memory else ("read",))


def resolve_target(
    target: str | dict[str, Any] | tvm.target.Target, host: Any = None
) -> ResolvedTarget:
    """Understand a target.

    Parameters
    ----------
    target : str, dict or tvm.target.Target
        ``"llvm"`` is this machine's CPU at its real instruction set; ``"opencl"`` and ``"cuda"``
        are this machine's GPU, or a generic one where there is none; a preset such as
        ``"mali-t860"`` or the CPU of a board such as ``"raspberry-pi-5"``, a TVM tag such as
        ``"arm/rk3399"``, a dict ``{"kind": "llvm", "mcpu": ...}`` or a Target is taken as it is.
    host : str, dict or tvm.target.Target, optional
        The CPU beside a GPU. Default: the one that the preset, tag or dict says, else this
        machine's.

    Raises
    ------
    InputError
        Not a target, an unknown CPU or feature, or TVM's old option string.
    """
    if isinstance(target, str) and target in PRESETS:
        preset = PRESETS[target]
        config = GPU_KINDS[preset.api].config(preset.spec, preset.arch)
        resolved = _with_host(config, preset.spec, host or preset.host)
        if host is None and preset.host_gflops:
            cpu = replace(resolved.cpu.spec, peak_gflops=preset.host_gflops)
            resolved = replace(resolved, host=replace(resolved.cpu, spec=cpu))
        return resolved
    board = BOARDS.get(target) if isinstance(target, str) else None
    named = KINDS.get(target) if isinstance(target, str) else None
    if isinstance(named, GpuKind):
        spec, arch = this_gpu(named)
        return _with_host(named.config(spec, arch), spec, host)
    parsed = native_cpu() if named else _parse(board.config if board else target)
    kind = KINDS.get(str(parsed.kind.name))
    if isinstance(kind, GpuKind):
        # TVM's tags are vendor/device, as our keys are.
        tag = target if isinstance(target, str) else ""
        spec, config = describe_gpu(kind, parsed, tag)
        return _with_host(config, spec, host or parsed.host)
    if kind is None:
        raise InputError(
            f"targets of kind {parsed.kind.name!r} are not supported; use 'llvm', 'opencl', "
            "'cuda', or a preset or tag of one of those, such as 'mali-t860' or 'arm/rk3399'",
            name="target",
            expected="llvm, opencl, cuda",
            got=parsed.kind.name,
        )
    if host is not None:
        raise InputError(
            f"host={host!r} with a CPU target: the CPU is its own host; leave host out",
            name="host",
            expected="None",
            got=repr(host),
        )
    own = _resolve_cpu(parsed, native=named is not None)
    return replace(own, spec=board.described(own.spec)) if board else own


def _with_host(config: Mapping[str, Any], spec: DeviceSpec, host: Any) -> ResolvedTarget:
    """Return a GPU with the CPU beside it."""
    cpu = resolve_target("llvm" if host is None else host)
    if cpu.host is not None:
        raise InputError(
            f"host={host!r} is a target of kind {cpu.kind!r}, and host code runs on a CPU; "
            "use 'llvm' or a CPU tag such as 'arm/rk3399'",
            name="host",
            expected="llvm",
            got=cpu.kind,
        )
    target = tvm.target.Target(dict(config), cpu.target)
    return ResolvedTarget(target, spec, cpu.features, cpu.triple, cpu)


def _resolve_cpu(parsed: tvm.target.Target, *, native: bool) -> ResolvedTarget:
    triple = _triple(parsed)
    if triple.split("-")[0] not in _ARCHITECTURES:
        # Asked about an architecture it does not know, LLVM crashes.
        raise InputError(
            f"the triple {triple!r} is not supported: TVM's wheels exist for "
            f"{' and '.join(_ARCHITECTURES)}; write {{'kind': 'llvm', 'mtriple': "
            "'aarch64-linux-gnu', ...}",
            name="mtriple",
            expected=", ".join(_ARCHITECTURES),
            got=triple,
        )
    if not native:
        if "mcpu" in parsed.attrs:
            _check_cpu(str(parsed.attrs["mcpu"]), triple)
        _check_features([str(attribute) for attribute in parsed.attrs.get("mattr", ())], triple)
    features = frozenset(str(f) for f in codegen.llvm_get_cpu_features(parsed)) & CODEGEN_FEATURES
    spec = cpu_spec(parsed, native=native)
    return ResolvedTarget(_as_scheduled(parsed, triple), spec, features, triple)


def _as_scheduled(parsed: tvm.target.Target, triple: str) -> tvm.target.Target:
    """Return the target that LLVM orders a CPU's instructions best for, with that CPU's features.

    Its model of the Cortex-A55 lets a core wait for operands that the model of the A53 has loaded
    earlier (``benchmarks/arm_mca``: 77 % of the issue limit in the mean, and 81 %).
    """
    other = _SCHEDULED_AS.get(str(parsed.attrs.get("mcpu", "")))
    if other is None:
        return parsed
    own = {str(feature) for feature in codegen.llvm_get_cpu_features(parsed)}
    more = own - _features_of(other, triple)
    less = [str(a) for a in parsed.attrs.get("mattr", ()) if str(a).startswith("-")]
    config = {**parsed.export(), "mcpu": other}
    return tvm.target.Target({**config, "mattr": [*(f"+{name}" for name in sorted(more)), *less]})


def _check_cpu(mcpu: str, triple: str) -> None:
    """Refuse a CPU that LLVM would replace by a generic one, or end the process for."""
    if _is_cpu(mcpu, triple):
        return
    other = next((t for t in _TRIPLES if _is_cpu(mcpu, t)), None)
    if mcpu in _cpus(triple):
        reason = f"the CPU {mcpu!r} has no 64-bit mode, and the code is for {triple}"
        advice = "write 'x86-64' for any CPU that has"
    elif other:
        architecture = other.split("-")[0]
        reason = f"LLVM knows no CPU {mcpu!r} for {triple}: it is one of {architecture}"
        advice = f"write {{'kind': 'llvm', 'mtriple': {other!r}, 'mcpu': {mcpu!r}}}"
    else:
        reason = f"LLVM knows no CPU {mcpu!r} for {triple}"
        advice = near_matches(mcpu, (cpu for cpu in _cpus(triple) if _is_cpu(cpu, triple)))
    raise InputError(
        f"{reason}; the target 'llvm' is this machine's own CPU; {advice}",
        name="mcpu",
        expected=f"a CPU of {triple}",
        got=mcpu,
    )


def _check_features(attributes: Sequence[str], triple: str) -> None:
    """Refuse features that LLVM would ignore, or end the process for."""
    for attribute in attributes:
        known = _known_features(triple)
        name = attribute[1:] if attribute.startswith(("+", "-")) else attribute
        if name not in known:
            other = _OTHER_NAMES.get(name) if triple.startswith("aarch64") else None
            advice = f"it calls that '+{other}'" if other else near_matches(name, known)
            raise InputError(
                f"LLVM knows no feature {attribute!r} for {triple}; {advice}",
                name="mattr",
                expected=f"features of {triple}",
                got=attribute,
            )
        if name == attribute:  # LLVM would take the feature away
            raise InputError(
                f"the feature {attribute!r} has no sign; write '+{name}' to use it or '-{name}' "
                "to do without",
                name="mattr",
                expected=f"+{name}",
                got=attribute,
            )
        if attribute.startswith("-") and name in _BASE:
            raise InputError(
                f"the feature {attribute!r} is refused: LLVM makes no code for {triple} without "
                f"{name}; leave it out",
                name="mattr",
                got=attribute,
            )


@functools.cache
def _cpus(triple: str) -> frozenset[str]:
    """LLVM's names of CPUs."""
    # Asked with a CPU in the target, LLVM writes about that one if it does not know it.
    target = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    return frozenset(str(name) for name in codegen.llvm_get_cpu_archlist(target))


def _is_cpu(mcpu: str, triple: str) -> bool:
    """Return whether LLVM makes code for it: its list for x86-64 begins with the i386."""
    if mcpu not in _cpus(triple):
        return False
    return not triple.startswith("x86_64") or _features_of(mcpu, triple) >= _BASE


@functools.cache
def _features_of(mcpu: str, triple: str) -> frozenset[str]:
    target = tvm.target.Target({"kind": "llvm", "mtriple": triple, "mcpu": mcpu})
    return frozenset(str(feature) for feature in codegen.llvm_get_cpu_features(target))


@functools.cache
def _known_features(triple: str) -> frozenset[str]:
    """Features of any CPU of an architecture: LLVM has no list, and ignores unknown names."""
    return frozenset().union(*(_features_of(cpu, triple) for cpu in _cpus(triple)))


def _parse(target: Any) -> tvm.target.Target:
    if isinstance(target, tvm.target.Target):
        return target
    if not isinstance(target, (str, dict)):
        raise InputError(
            f"a target is a name, a dict or a tvm.target.Target, not {type(target).__name__}; "
            "try target='llvm'",
            name="target",
            got=type(target).__name__,
        )
    if isinstance(target, str) and " -" in target:
        raise InputError(
            f"the target string {target!r} has options, which TVM 0.27 rejects; "
            f"write the dict {_as_dict(target)}",
            name="target",
            got=target,
        )
    if isinstance(target, dict):
        gpu = GPU_KINDS.get(str(target.get("kind")))
        if gpu is not None and gpu.oldest_arch and "arch" not in target:
            target = {**target, "arch": this_gpu(gpu)[1]}  # TVM would say sm_50
    try:
        return tvm.target.Target(target)
    except (ValueError, TypeError, KeyError) as err:
        name = target if isinstance(target, str) else str(target.get("kind", target))
        known = [*KINDS, *PRESETS, *BOARDS, *(str(tag) for tag in tvm.target.list_tags())]
        raise InputError(
            f"{target!r} is not a target ({' '.join(str(err).split())[:200]}); "
            f"{near_matches(name, known)}",
            name="target",
            got=repr(target),
        ) from err


def _as_dict(target: str) -> dict[str, Any]:
    """Return the dict form of TVM's old option string ``kind -key=value -flag``."""
    try:
        kind, *options = shlex.split(target)
    except ValueError:  # an open quote
        kind, *options = target.split()
    config: dict[str, Any] = {"kind": kind}
    for option in options:
        key, _, value = option.lstrip("-").partition("=")
        key = {"target": "mtriple", "triple": "mtriple"}.get(key, key)
        if key in ("mattr", "libs", "keys"):
            config[key] = value.split(",")
        else:
            config[key] = int(value) if value.isdecimal() else value or True
    return config


def _triple(target: tvm.target.Target) -> str:
    triple = str(target.attrs.get("mtriple", "") or "")
    # The wheel was built with conda's compiler and reports x86_64-conda-linux-gnu.
    return triple or f"{machine()}-linux-gnu"
