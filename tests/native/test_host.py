"""The native runtime and the compiler say the same of this machine, and of names in code."""

from __future__ import annotations

import re
from pathlib import Path

from tvm_edge import host
from tvm_edge.native import native_function
from tvm_edge.runtime import entry
from tvm_edge.runtime.artifact import FORMAT_VERSION

_CSRC = Path(__file__).parents[2] / "tvm_edge/native/csrc"


def test_features_of_this_cpu() -> None:
    found = {str(name) for name in native_function("runtime.host_features")()}
    assert found == (host.host_features() or frozenset())


def test_features_that_have_names() -> None:
    text = (_CSRC / "host.cc").read_text()
    pairs = set(re.findall(r'\{"([^"]+)", "([^"]+)"\}', text))
    assert pairs == set(host._X86.items()) | set(host._AARCH64.items())


def test_names_in_code() -> None:
    text = (_CSRC / "entry.h").read_text()
    assert f'kMain = "{entry.ALL}"' in text
    assert f'kUnalignedInputs = "{entry.UNALIGNED}"' in text
    for name in (entry.kernel_by_kernel(""), entry.by_shape(""), entry.part_sizes("")):
        assert f'"{name}"' in text
    native = "".join(path.read_text() for path in _CSRC.glob("*.cc"))
    for name in (entry.NEXT_PART, entry.UPLOAD_PART, entry.RECORDING, entry.RESULT):
        assert f'"{name}"' in native


def test_version_of_artifacts() -> None:
    assert f"kFormatVersion = {FORMAT_VERSION};" in (_CSRC / "artifact.h").read_text()
