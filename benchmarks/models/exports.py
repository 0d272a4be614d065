"""Exports by torch, torchvision, timm, ultralytics and smp: how many compile and are right.

Makes an environment with the versions of ``export_cases.REQUIREMENTS`` beside ``--folder``, and in
it each file of ``export_cases.EXPORTS``; files that are there already stay.

ONNX Runtime's outputs on seeded inputs are the reference: an output is right within 1e-3 of its
largest value, and detections are the same one to one but for those at a threshold. Each file is
compiled and run in a process of its own; ``refused`` is any error, ``late`` one that takes longer
than ``--limit-s``. To run one alone: ``--only NAME``.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from benchmarks.common.paths import ROOT
from benchmarks.models.against_onnx_runtime import Case, case_parser, measure
from benchmarks.models.export_cases import EXPORTS, REQUIREMENTS

FOLDER = Path("~/.cache/tvm-edge-benchmarks/exports")

_making = Lock()


def make_environment(folder: Path) -> Path:
    """Make the environment of the exports where it is not yet; return its interpreter."""
    python = folder / "bin" / "python"
    done = folder / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS) + "\n"
    if not done.exists() or done.read_text() != wanted:
        venv.create(folder, with_pip=True)
        print("installing", *REQUIREMENTS, file=sys.stderr, flush=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
        done.write_text(wanted)
    return python


def export(case: Case, folder: Path, python: Path) -> None:
    """Write the file of a case.

    Raises
    ------
    RuntimeError
        The exporter failed.
    """
    job = ("-m", "benchmarks.common.child", "benchmarks.models.export_writers", "write")
    done = subprocess.run(
        [python, *job, case.name, folder], cwd=ROOT, capture_output=True, text=True, check=False
    )
    made = folder / f"{case.name}.onnx"
    if done.returncode != 0 or not made.exists():
        made.unlink(missing_ok=True)  # or the next run takes half a file for the whole
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"export: {lines[-1][:300]}")


def main(arguments: Sequence[str]) -> None:
    """Check and print."""
    parser = case_parser("exports", __doc__)
    parser.set_defaults(folder=FOLDER)
    parser.add_argument("--environment", type=Path, metavar="FOLDER", help="of the exporters")
    options = parser.parse_args(arguments)
    place = options.environment or options.folder.with_name(options.folder.name + "-venv")

    failed: list[Exception] = []  # of the environment, once for all cases

    def prepare(case: Case, folder: Path) -> None:
        if not (folder / f"{case.name}.onnx").exists():
            with _making:
                if failed:
                    raise failed[0]
                try:
                    python = make_environment(place.expanduser().resolve())
                except (OSError, subprocess.CalledProcessError) as error:
                    failed.append(error)
                    raise
            export(case, folder, python)

    measure([each.case(name) for name, each in EXPORTS.items()], prepare, options)
