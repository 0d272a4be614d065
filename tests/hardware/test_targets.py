"""What users write as targets: understood exactly, or refused with what to write instead."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import tvm

from tests.runtime.support import run_python
from tvm_edge import InputError
from tvm_edge.hardware import resolve_target, targets
from tvm_edge.host import host_features, machine, physical_cores


def x86(mcpu: str) -> dict[str, Any]:
    """An x86-64 target, whatever machine the tests run on."""
    return {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu}


def refused(target: Any, *fragments: str) -> InputError:
    """Resolve `target` and check what the error says."""
    with pytest.raises(InputError) as caught:
        resolve_target(target)
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert caught.value.exit_code == 4
    return caught.value


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


def test_native_leaves_out_what_a_hypervisor_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    here = host_features() or frozenset()
    masked = {f for f in here if f.startswith("avx512")} or here & {"fma", "lse"}
    assert masked
    monkeypatch.setattr(targets, "host_features", lambda: here - masked)
    targets._native_cpu.cache_clear()
    try:
        resolved = resolve_target("llvm")
    finally:
        targets._native_cpu.cache_clear()
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


@pytest.mark.parametrize(
    ("mcpu", "meant"), [("znver44", "znver4"), ("skylake-avx51", "skylake-avx512")]
)
def test_an_unknown_cpu_is_answered_with_near_ones(mcpu: str, meant: str) -> None:
    assert refused(x86(mcpu), repr(mcpu), f"'{meant}'").name == "mcpu"


def test_a_cpu_of_another_architecture() -> None:
    refused(x86("cortex-a72"), "cortex-a72", "x86_64")


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
    with pytest.raises(InputError, match="'avx512f'"):
        resolve_target({"kind": "llvm", "mattr": ["+avx512ff"]})
    assert "avx2" in resolve_target({"kind": "llvm", "mattr": ["+avx2"]}).features
