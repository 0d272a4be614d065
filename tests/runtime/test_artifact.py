"""The artifact: what is written is what is read, and anything else is refused."""

from __future__ import annotations

import gc
import hashlib
import json
import mmap
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvm_edge
from tests.runtime.support import rewrite_artifact
from tvm_edge import ArtifactError, DeviceUnavailableError, InputError, TvmEdgeError
from tvm_edge.host import CODEGEN_FEATURES, host_features, machine
from tvm_edge.runtime.artifact import read_artifact
from tvm_edge.runtime.dlpack import host_array

NEXT_STEPS = (
    "export it again",
    "export the model again",
    "check the path",
    "compile it",
    "pip install",
)


def refused(path: Path, error: type[TvmEdgeError], *fragments: str) -> TvmEdgeError:
    """Load `path` and check the error: its type, the path, what happened, a next step."""
    with pytest.raises(error) as caught:
        tvm_edge.load(path)
    message = str(caught.value)
    for fragment in (str(path), *fragments):
        assert fragment in message
    assert any(step in message for step in NEXT_STEPS), message
    return caught.value


def nested(depth: int) -> Any:
    """A list in a list in a list …"""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def mappings(path: Path) -> list[tuple[int, int]]:
    """Address ranges of this process that are backed by `path`."""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            start, _, end = line.split()[0].partition("-")
            ranges.append((int(start, 16), int(end, 16)))
    return ranges


def test_outputs_are_bit_equal(
    compiled_small: tvm_edge.CompiledModel, artifact: Path, image: np.ndarray
) -> None:
    expected = compiled_small.run({"data": image})
    actual = tvm_edge.load(artifact).run({"data": image})
    assert list(actual) == list(expected)
    np.testing.assert_array_equal(actual["pooled"], expected["pooled"])


def test_signature_and_report_survive(
    compiled_small: tvm_edge.CompiledModel, artifact: Path
) -> None:
    loaded = tvm_edge.load(artifact)
    assert loaded.inputs == compiled_small.inputs
    assert loaded.outputs == compiled_small.outputs
    # All but the compiler's wall-clock times, which would make equal models differ.
    report = replace(compiled_small.report, seconds={})
    assert loaded.report == report
    assert loaded.report.to_dict() == report.to_dict()


def test_any_tool_can_list_it(artifact: Path) -> None:
    with zipfile.ZipFile(artifact) as archive:
        assert archive.testzip() is None
        members = {info.filename: info for info in archive.infolist()}
        manifest = json.loads(archive.read("manifest.json"))
    assert set(members) == {"manifest.json", "library.so", "weights.bin"}
    assert all(info.compress_type == zipfile.ZIP_STORED for info in members.values())
    assert manifest["format"] == "tvm-edge"
    assert [spec["name"] for spec in manifest["inputs"]] == ["data"]


def test_weights_start_on_a_page(artifact: Path) -> None:
    with zipfile.ZipFile(artifact) as archive:
        content = archive.read("weights.bin")
    assert artifact.read_bytes().index(content) % mmap.PAGESIZE == 0


def test_weights_are_aligned_views_of_the_file(artifact: Path) -> None:
    opened = read_artifact(artifact)
    ranges = mappings(artifact)
    assert opened.weights
    for weight in map(host_array, opened.weights):
        assert weight.ctypes.data % 64 == 0
        assert any(
            start <= weight.ctypes.data and weight.ctypes.data + weight.nbytes <= end
            for start, end in ranges
        )


def test_a_loaded_model_keeps_the_file_mapped(artifact: Path, tmp_path: Path) -> None:
    copy = tmp_path / "mapped.tvme"
    copy.write_bytes(artifact.read_bytes())
    model = tvm_edge.load(copy)
    gc.collect()
    assert mappings(copy)
    del model
    gc.collect()
    assert not mappings(copy)


def test_loading_and_running_leave_no_trace(
    artifact: Path,
    image: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = artifact.read_bytes()
    tvm_edge.load(artifact).run({"data": image})
    assert list(tmp_path.iterdir()) == []
    assert artifact.read_bytes() == before
    assert capfd.readouterr() == ("", "")


def test_a_loaded_model_exports_again(
    compiled_small: tvm_edge.CompiledModel, artifact: Path, image: np.ndarray, tmp_path: Path
) -> None:
    again = tvm_edge.load(artifact).export(tmp_path / "again.tvme")
    assert again.read_bytes() == artifact.read_bytes()
    np.testing.assert_array_equal(
        tvm_edge.load(again).run({"data": image})["pooled"],
        compiled_small.run({"data": image})["pooled"],
    )


def test_a_repacked_artifact_loads(
    compiled_small: tvm_edge.CompiledModel, artifact: Path, image: np.ndarray, tmp_path: Path
) -> None:
    """Without the alignment that export gives, weights are copied."""
    repacked = rewrite_artifact(artifact, tmp_path / "repacked.tvme")
    np.testing.assert_array_equal(
        tvm_edge.load(repacked).run({"data": image})["pooled"],
        compiled_small.run({"data": image})["pooled"],
    )


def test_truncated_at_any_length(artifact: Path, tmp_path: Path) -> None:
    content = artifact.read_bytes()
    path = tmp_path / "short.tvme"
    lengths = {*range(0, len(content), len(content) // 97), 1, 22, len(content) - 1}
    for length in sorted(lengths):
        path.write_bytes(content[:length])
        refused(path, ArtifactError)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_altered_byte_goes_unnoticed(
    data: st.DataObject, artifact: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A change is refused, or it is padding that nothing is read from."""
    content = bytearray(artifact.read_bytes())
    original = read_artifact(artifact)
    with zipfile.ZipFile(artifact) as archive:
        member = data.draw(st.sampled_from([*archive.namelist(), "the archive"]))
        start, length = 0, len(content)
        if member != "the archive":
            length = archive.getinfo(member).file_size
            start = content.index(archive.read(member))
    position = start + data.draw(st.integers(0, length - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "altered.tvme"
    path.unlink(missing_ok=True)  # ext4 waits for the disk where a file is written once more
    path.write_bytes(content)
    try:
        altered = read_artifact(path)
    except ArtifactError as err:
        assert str(path) in str(err)
        return
    assert member == "the archive"
    assert altered.code() == original.code()
    assert altered.manifest == original.manifest
    for actual, expected in zip(altered.weights, original.weights, strict=True):
        np.testing.assert_array_equal(actual.numpy(), expected.numpy())


def test_only_the_cpu_of_this_machine_is_offered(artifact: Path, image: np.ndarray) -> None:
    expected = tvm_edge.load(artifact).run({"data": image})["pooled"]
    loaded = tvm_edge.load(artifact, device="cpu", num_threads=1)
    np.testing.assert_array_equal(loaded.run({"data": image})["pooled"], expected)
    with pytest.raises(DeviceUnavailableError, match="'opencl'"):
        tvm_edge.load(artifact, device="opencl")
    with pytest.raises(InputError, match="remote"):
        tvm_edge.load(artifact, remote=object())


def test_missing_file(tmp_path: Path) -> None:
    refused(tmp_path / "absent.tvme", ArtifactError, "No such file")


def test_folder(tmp_path: Path) -> None:
    refused(tmp_path, ArtifactError, "directory")


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06", b"\x7fELF" + bytes(4096), bytes(100)])
def test_not_a_zip(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.tvme"
    path.write_bytes(content)
    refused(path, ArtifactError)


@pytest.mark.parametrize(
    "manifest",
    ['{"format": "other", "format_version": 1}', "{}", "[]", '"tvm-edge"', "not JSON"],
)
def test_a_zip_of_something_else(tmp_path: Path, manifest: str) -> None:
    path = tmp_path / "model.tvme"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("library.so", "weights.bin"):
            archive.writestr(name, b"")
        archive.writestr("manifest.json", manifest)
    refused(path, ArtifactError)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(path, ArtifactError)


def test_a_newer_format(artifact: Path, tmp_path: Path) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["format_version"] += 1
        manifest["versions"]["tvm_edge"] = "9.8.7"

    path = rewrite_artifact(artifact, tmp_path / "newer.tvme", edit)
    refused(path, ArtifactError, "format 2", "9.8.7")


def test_another_tvm(artifact: Path, tmp_path: Path) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["versions"]["tvm"] = "0.25.0"

    path = rewrite_artifact(artifact, tmp_path / "other.tvme", edit)
    refused(path, ArtifactError, "0.25.0", "pip install apache-tvm==0.25.0")


def test_another_architecture(artifact: Path, tmp_path: Path) -> None:
    other = "aarch64" if machine() == "x86_64" else "x86_64"

    def edit(manifest: dict[str, Any]) -> None:
        manifest["target"]["architecture"] = other

    path = rewrite_artifact(artifact, tmp_path / "foreign.tvme", edit)
    refused(path, ArtifactError, other, machine())


def test_a_cpu_feature_that_is_not_here(artifact: Path, tmp_path: Path) -> None:
    lacking = sorted(CODEGEN_FEATURES - (host_features() or frozenset()))[0]

    def edit(manifest: dict[str, Any]) -> None:
        manifest["target"]["features"].append(lacking)

    path = rewrite_artifact(artifact, tmp_path / "feature.tvme", edit)
    assert refused(path, DeviceUnavailableError, lacking).exit_code == 5


@pytest.mark.parametrize(
    "edit",
    [
        lambda manifest: manifest.pop("inputs"),
        lambda manifest: manifest.pop("target"),
        lambda manifest: manifest["target"].pop("features"),
        lambda manifest: manifest.pop("checksums"),
        lambda manifest: manifest["report"].pop("memory"),
        lambda manifest: manifest.update(report=None),
        lambda manifest: manifest["weights"][0].update(offset=1 << 40),
        lambda manifest: manifest["weights"][0].update(offset=-64),  # inside the file
        lambda manifest: manifest["weights"][0].update(offset=512),  # half behind weights.bin
        lambda manifest: manifest["weights"][0].update(nbytes=-4),
        lambda manifest: manifest["weights"][0].update(shape=[7]),
        lambda manifest: manifest["weights"][0].update(dtype="float12"),
        lambda manifest: manifest["weights"][0].update(dtype="object"),
        lambda manifest: manifest["weights"][0].update(shape=[-1]),
        lambda manifest: manifest["weights"][0].update(offset=0.5),
        lambda manifest: manifest["weights"].pop(),
        lambda manifest: manifest.update(versions="0.27"),
        lambda manifest: manifest["target"].update(kind="hexagon"),
        lambda manifest: manifest["target"].update(features=[["avx"]]),
        lambda manifest: manifest["inputs"][0].update(shape=[1, 3, 16, "N"]),
        lambda manifest: manifest["inputs"][0].update(shape=[2**40, 2**40]),
        lambda manifest: manifest["inputs"][0].update(dtype="datetime64[s]"),
        lambda manifest: manifest["inputs"][0].update(name=7),
        lambda manifest: manifest["inputs"].append(manifest["inputs"][0]),
        lambda manifest: manifest["devices"].update(kinds=["ext_dev"]),
        lambda manifest: manifest["devices"].update(inputs=[1]),
        lambda manifest: manifest["devices"].update(weights=[0]),
        lambda manifest: manifest["report"].update(model="\ud800"),
        lambda manifest: manifest["report"]["kernels"][0].update(flops=float("nan")),
        lambda manifest: manifest["report"]["kernels"][0].update(bytes=10**400),
        lambda manifest: manifest["report"].update(warnings=[None]),
        lambda manifest: manifest["report"]["operators"][0].update(inputs=[0]),
        lambda manifest: manifest["report"]["operators"][1].update(inputs=[-1]),
        lambda manifest: manifest["report"]["operators"][1].update(inputs="0"),
        lambda manifest: manifest["report"]["memory"].update(over_time={"": [1]}),
        lambda manifest: manifest["report"]["memory"].update(over_time=[1]),
        lambda manifest: manifest["target"].update(device=nested(900)),
        lambda manifest: manifest.update(smaller=7),
        lambda manifest: manifest.update(smaller={"kernels": [{"name": "k"}], "alone": []}),
        lambda manifest: manifest.update(smaller={"kernels": [], "alone": [[]]}),  # of no model
    ],
)
def test_an_inconsistent_manifest(
    artifact: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    refused(rewrite_artifact(artifact, tmp_path / "odd.tvme", edit), ArtifactError)


def test_a_library_that_does_not_link(artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "library.tvme"
    with zipfile.ZipFile(artifact) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        weights = archive.read("weights.bin")
    manifest["checksums"]["library.so"] = hashlib.sha256(b"no ELF file").hexdigest()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("library.so", b"no ELF file")
        archive.writestr("weights.bin", weights)
        archive.writestr("manifest.json", json.dumps(manifest))
    refused(path, ArtifactError, "dynamic linker")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 10_000, "\ufeff{}"])
def test_json_that_no_parser_takes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.tvme"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("library.so", "weights.bin"):
            archive.writestr(name, b"")
        archive.writestr("manifest.json", text)
    refused(path, ArtifactError)


@pytest.mark.parametrize(
    "edit",
    [
        lambda manifest: manifest["inputs"][0].update(shape=[1, 3, 16, 17]),
        lambda manifest: manifest["inputs"][0].update(dtype="int32"),
        lambda manifest: manifest["weights"][1]["shape"].pop(),
        lambda manifest: manifest["weights"][0].update(dtype="int32"),
        lambda manifest: manifest["outputs"].append({**manifest["outputs"][0], "name": "more"}),
    ],
)
def test_a_manifest_of_other_code(
    artifact: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    """Consistent in itself, so that it loads; the code refuses the arguments."""
    model = tvm_edge.load(rewrite_artifact(artifact, tmp_path / "other.tvme", edit))
    values = {spec.name: np.ones(spec.typical_shape, spec.dtype) for spec in model.inputs}
    with pytest.raises(ArtifactError, match="manifest"):
        model.run(values)
