"""What users write as targets: understood exactly, or refused with what to write instead."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hardware.refusals import refused
from tests.runtime.support import run_python
from tvm_edge import InputError
from tvm_edge.hardware import cpu, resolve_target
from tvm_edge.host import host_features, machine, physical_cores


def x86(mcpu: str) -> dict[str, Any]:
    """An x86-64 target, whatever machine the tests run on."""
    return {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu}


def test_native_is_this_cpu() -> None:
    resolved = resolve_target("llvm")
    assert resolved.architecture == machine()
    assert resolved.spec.kind == "cpu"
    assert resolved.spec.cores == physical_cores()
    assert str(resolved.target.attrs["mcpu"]) not in ("", "generic")


def test_native_uses_no_feature_that_this_cpu_lacks() -> None:
    here = host_features()
    assert here is not None
    resolved = resolve_target("llvm")
    assert resolved.features
    assert resolved.features <= here


def test_native_uses_the_widest_vectors_of_this_cpu() -> None:
    here = host_features() or frozenset()
    widths = {"avx512f": 64, "avx2": 32, "sse4.2": 16, "neon": 16}
    expected = max(width for feature, width in widths.items() if feature in here)
    assert resolve_target("llvm").spec.simd_bytes == expected


@pytest.mark.parametrize(
    ("architecture", "text", "expected"),
    [
        ("aarch64", "Features\t: fp asimd\n\nFeatures\t: fp asimd atomics\n", {"fp-armv8", "neon"}),
        ("x86_64", "flags\t\t: pni fpu\n", {"sse3"}),
        ("aarch64", "flags\t\t: pni fpu\n", None),  # an emulator, on x86
        ("riscv64", "isa\t: rv64imafdc\n\n", None),
    ],
)
def test_features_are_those_of_the_architecture(
    architecture: str,
    text: str,
    expected: set[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: architecture)
    (tmp_path / "cpuinfo").write_text(text)
    assert host_features(str(tmp_path / "cpuinfo")) == expected


def test_native_leaves_out_what_a_hypervisor_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    here = host_features() or frozenset()
    masked = {f for f in here if f.startswith("avx512")} or here & {"fma", "lse"}
    assert masked
    monkeypatch.setattr(cpu, "host_features", lambda: here - masked)
    cpu.native_cpu.cache_clear()
    try:
        resolved = resolve_target("llvm")
    finally:
        cpu.native_cpu.cache_clear()
    assert resolved.features
    assert not resolved.features & masked


@pytest.mark.parametrize(
    ("target", "simd_bytes", "registers"),
    [
        (x86("znver4"), 64, 32),
        (x86("skylake-avx512"), 64, 32),
        (x86("sapphirerapids"), 64, 32),
        (x86("haswell"), 32, 16),
        (x86("znver2"), 32, 16),
        (x86("sandybridge"), 32, 16),
        (x86("nehalem"), 16, 16),
        ("arm/rk3399", 16, 32),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}, 16, 32),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}, 16, 32),
    ],
    ids=str,
)
def test_vector_registers_follow_the_instruction_set(
    target: Any, simd_bytes: int, registers: int
) -> None:
    spec = resolve_target(target).spec
    assert (spec.simd_bytes, spec.vector_registers) == (simd_bytes, registers)
    assert spec.lanes(4) == simd_bytes // 4
    assert spec.kind == "cpu"


def test_a_tag_is_another_cpu() -> None:
    resolved = resolve_target("arm/rk3399")
    assert resolved.architecture == "aarch64"
    assert "neon" in resolved.features
    assert resolved.spec.key.startswith("aarch64/")


def test_a_dict_and_a_target_are_taken_as_they_are() -> None:
    described = x86("haswell")
    resolved = resolve_target(described)
    assert resolved.spec == resolve_target(tvm.target.Target(described)).spec
    assert "avx2" in resolved.features
    assert not {feature for feature in resolved.features if feature.startswith("avx512")}


def test_cores_can_be_stated() -> None:
    assert resolve_target({**x86("haswell"), "num-cores": 12}).spec.cores == 12


@pytest.mark.parametrize(
    ("text", "dictionary"),
    [
        ("llvm -mcpu=znver4", {"kind": "llvm", "mcpu": "znver4"}),
        (
            "llvm -mtriple=aarch64-linux-gnu -mattr=+neon,+dotprod",
            {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "+dotprod"]},
        ),
        (
            "llvm -device=arm_cpu -target=aarch64-linux-gnu -mcpu=cortex-a72",
            {
                "kind": "llvm",
                "device": "arm_cpu",
                "mtriple": "aarch64-linux-gnu",
                "mcpu": "cortex-a72",
            },
        ),
        ("llvm -mcpu=haswell -num-cores=4", {"kind": "llvm", "mcpu": "haswell", "num-cores": 4}),
    ],
)
def test_an_old_option_string_is_answered_with_its_dict(
    text: str, dictionary: dict[str, Any]
) -> None:
    message = str(refused(text))
    advised = ast.literal_eval(message[message.index("{") : message.rindex("}") + 1])
    assert advised == dictionary
    if machine() in ("x86_64", dictionary.get("mtriple", "").split("-")[0]):
        assert resolve_target(advised).spec.kind == "cpu"


def test_an_old_option_string_with_an_open_quote() -> None:
    refused("llvm -mcpu='znver4", "znver4")


def arm(mcpu: str) -> dict[str, Any]:
    """An AArch64 target, whatever machine the tests run on."""
    return {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": mcpu}


@pytest.mark.parametrize(
    ("target", "mcpu", "meant"),
    [
        (x86("znver44"), "znver44", "znver4"),
        (x86("skylake-avx521"), "skylake-avx521", "skylake-avx512"),
        (x86("Haswell"), "Haswell", "haswell"),
        (arm("cortex-a79"), "cortex-a79", "cortex-a78"),
        (tvm.target.Target(x86("haswel")), "haswel", "haswell"),
        ({"kind": "opencl", "host": arm("neoverse-n11")}, "neoverse-n11", "neoverse-n1"),
    ],
    ids=str,
)
def test_an_unknown_cpu_is_answered_with_near_ones(target: Any, mcpu: str, meant: str) -> None:
    """LLVM itself prints a line and makes code for a generic one."""
    triple = "aarch64-linux-gnu" if mcpu in ("cortex-a79", "neoverse-n11") else "x86_64-linux-gnu"
    error = refused(target, repr(mcpu), triple, f"'{meant}'", "'llvm' is this machine's")
    assert (error.name, error.got) == ("mcpu", mcpu)


def test_an_unknown_cpu_of_the_host_is_refused() -> None:
    for target, host in (("opencl", x86("znver44")), ("mali-t860", arm("cortex-a722"))):
        with pytest.raises(InputError, match=host["mcpu"]) as caught:
            resolve_target(target, host)
        assert caught.value.name == "mcpu"


@pytest.mark.parametrize("mcpu", ["", " ", "native", "zz", "haswell\n", "é", "a" * 5000])
def test_names_that_are_near_nothing(mcpu: str) -> None:
    assert refused(x86(mcpu), "'llvm' is this machine's", "x86_64-linux-gnu").name == "mcpu"


@pytest.mark.parametrize("described", [x86("cortex-a76"), arm("znver4")], ids=str)
def test_a_cpu_of_another_architecture(described: dict[str, Any]) -> None:
    """The message holds the target that was meant."""
    message = str(refused(described, described["mcpu"], f"for {described['mtriple']}"))
    advised = ast.literal_eval(message[message.index("{") : message.rindex("}") + 1])
    assert advised["mcpu"] == described["mcpu"]
    assert advised["mtriple"] != described["mtriple"]
    assert resolve_target(advised).triple == advised["mtriple"]


@pytest.mark.parametrize("mcpu", ["i386", "pentium4", "athlon-xp", "lakemont"])
def test_a_cpu_without_64_bits_is_refused(mcpu: str) -> None:
    """LLVM lists it for x86-64, and would end the process."""
    refused(x86(mcpu), mcpu, "no 64-bit mode", "'x86-64'")
    assert f"'{mcpu}'" not in str(refused(x86(f"{mcpu}-"))), "nor is it advised"


@pytest.mark.parametrize("mcpu", ["generic", "x86-64", "x86-64-v3", "k8", "core2"])
def test_old_and_generic_cpus_are_cpus(mcpu: str) -> None:
    assert resolve_target(x86(mcpu)).architecture == "x86_64"


def test_every_tag_of_a_cpu_that_is_supported_resolves() -> None:
    found = set()
    for tag in map(str, tvm.target.list_tags()):
        target = tvm.target.Target(tag)
        triple = str(target.attrs.get("mtriple", ""))
        if target.kind.name == "llvm" and triple.startswith(("x86_64", "aarch64")):
            assert resolve_target(tag).triple == triple
            found.add(tag)
    assert {"arm/rk3399", "arm/rasp4b64"} <= found


_CPUS = sorted(
    str(cpu) for cpu in tvm.target.codegen.llvm_get_cpu_archlist(tvm.target.Target(x86("x86-64")))
)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_mistyped_cpu_is_a_cpu_or_refused_in_words(data: st.DataObject) -> None:
    mcpu = data.draw(st.sampled_from(_CPUS))
    position = data.draw(st.integers(0, len(mcpu)))
    text = data.draw(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=2))
    typed = mcpu[:position] + text + mcpu[position + data.draw(st.integers(0, 2)) :]
    try:
        assert resolve_target(x86(typed)).target.attrs["mcpu"] == typed
        assert typed in _CPUS
    except InputError as err:
        assert err.name == "mcpu"
        assert repr(typed) in str(err)


@pytest.mark.parametrize(
    ("target", "meant"),
    [("lvm", "llvm"), ("arm/rk339", "arm/rk3399"), ("arm/rasp4", "arm/rasp4b")],
)
def test_an_unknown_name_is_answered_with_near_ones(target: str, meant: str) -> None:
    error = refused(target, f"did you mean '{meant}'")
    assert error.name == "target"


@pytest.mark.parametrize("target", ["", "no such thing", {}, {"mcpu": "znver4"}, {"kind": 5}])
def test_not_a_target(target: Any) -> None:
    refused(target, "not a target")


@pytest.mark.parametrize("target", [None, 3, ["llvm"], b"llvm"])
def test_not_even_a_description(target: Any) -> None:
    refused(target, type(target).__name__, "try target='llvm'")


def test_an_unknown_option_is_named() -> None:
    refused({"kind": "llvm", "mpcu": "znver4"}, "mpcu")


def test_an_unknown_triple_is_refused() -> None:
    """In a child: LLVM ends the process when asked for the features of a CPU it has no code for."""
    output = run_python(
        """
from tvm_edge import InputError
from tvm_edge.hardware import resolve_target
try:
    resolve_target({"kind": "llvm", "mtriple": "foo-bar"})
except InputError as err:
    print(err)
"""
    )
    assert "foo-bar" in output


def test_an_unknown_feature_is_refused() -> None:
    """LLVM itself only prints a line and goes on without it."""
    refused({**x86("haswell"), "mattr": ["+avx512ff"]}, "'+avx512ff'", "'avx512f'")
    refused({**arm("generic"), "mattr": ["+neon", "+dotprodd"]}, "'+dotprodd'", "'dotprod'")
    for odd in ("", "+", "++avx2", "+avx2,+fma", "+neon"):
        assert refused({**x86("haswell"), "mattr": [odd]}, repr(odd)).name == "mattr"
    known = resolve_target({**x86("x86-64"), "mattr": ["+avx2", "-cx8"]})
    assert "avx2" in known.features


def test_a_feature_needs_its_sign() -> None:
    """LLVM takes a feature without one away."""
    refused({**x86("haswell"), "mattr": ["avx2"]}, "'+avx2'", "'-avx2'")


@pytest.mark.parametrize("feature", ["-64bit", "-64bit-mode", "-sse", "-sse2"])
def test_what_code_cannot_do_without(feature: str) -> None:
    """LLVM would end the process."""
    refused({**x86("haswell"), "mattr": [feature]}, repr(feature), "leave it out")
