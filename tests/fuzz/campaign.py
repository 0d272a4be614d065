"""Feed random damaged files to tvm-edge for some minutes, and keep what it stumbles over.

::

    python -m tests.fuzz.campaign --kind model --minutes 10 --seed 0

Kinds: ``model`` (random graphs, ONNX's operator tests, exported networks, mutations of all three;
``--source`` chooses), ``bytes`` (mutations of model files guided by coverage of our Python and
TVM's importer; needs ``pip install atheris``), ``artifact``, ``programs`` (built OpenCL kernels).

A file must end in success or a ``TvmEdgeError`` within a minute and 4 GiB. A model that ONNX
Runtime runs, too, must give its results. Everything else is a finding: it is made smaller and
written to ``tests/fuzz/corpus/KIND``, whose files ``make test`` feeds again. Wrong results go to
``--wrong``, if given; they belong into a test of the operator. Exit status 1: findings.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.artifacts import apply, random_edits
from tests.fuzz.minimise import minimise_edits, minimise_model
from tests.fuzz.programs import random_pack
from tests.fuzz.worker import ROOT, Outcome, Worker

__all__ = ["CORPUS", "Fuzzer", "lay_out", "sound_artifact"]

CORPUS = Path(__file__).parent / "corpus"
_LARGEST = 50_000  # bytes of a corpus file
_MAKE_ARTIFACT = """
import sys, tvm_edge
from tests.onnx_models import conv_relu
path, target = sys.argv[1:]
compiled = tvm_edge.compile(conv_relu(), target, fallback="auto" if target == "llvm" else "none")
if target == "opencl":  # the CPU's driver allows large work-groups: none are smaller by themselves
    from tvm_edge.compiler.build import BuiltLibrary
    from tvm_edge.report import Launches
    library = compiled._library
    launches = Launches(compiled.report.kernels, ())
    same = BuiltLibrary(library._executable, library._resolved, None, launches)
    library._make_smaller = lambda: same
compiled.export(path, embed_programs=target == "opencl")
"""


def lay_out(folder: Path) -> None:
    """What external data may point at."""
    (folder / "weights.bin").write_bytes(bytes(range(256)) * 16)
    (folder / "link").symlink_to("/etc/hostname")
    os.mkfifo(folder / "pipe")


def sound_artifact(folder: Path, target: str = "llvm") -> bytes:
    """An exported model; for OpenCL with built programs, and with smaller work-groups."""
    path = folder / "sound.tvme"
    subprocess.run([sys.executable, "-c", _MAKE_ARTIFACT, path, target], cwd=ROOT, check=True)
    return path.read_bytes()


class Fuzzer:
    """Feeds files of one kind, and keeps findings apart by what and where they are.

    Parameters
    ----------
    kind : {"model", "artifact", "programs"}
    corpus : path or None
        Where findings go.
    wrong : path or None
        Where models with wrong results go.
    target : {"llvm", "opencl"}
        Of models and of the sound artifact.
    """

    def __init__(
        self,
        kind: str,
        corpus: Path | None,
        wrong: Path | None = None,
        target: str = "llvm",
    ) -> None:
        self.kind, self.target = kind, target
        self.counts: Counter[str] = Counter()
        self.findings: Counter[str] = Counter()
        self._corpus, self._wrong = corpus, wrong
        self._home = tempfile.TemporaryDirectory(prefix="tvm-edge-fuzz-")
        self.folder = Path(self._home.name)
        self._worker, self._judge = Worker(), Worker("tests.fuzz.oracle")
        lay_out(self.folder)
        self.sound = sound_artifact(self.folder, target) if kind == "artifact" else b""

    def __enter__(self) -> Fuzzer:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()
        self._judge.close()
        self._home.cleanup()

    def manifest(self) -> dict[str, Any]:
        """That of the sound artifact."""
        with zipfile.ZipFile(self.folder / "sound.tvme") as archive:
            manifest: dict[str, Any] = json.loads(archive.read("manifest.json"))
        return manifest

    def feed(self, content: bytes, seed: int = 0) -> Outcome:
        """What becomes of a corpus file's content."""
        path = self.folder / "file"
        if self.kind == "artifact":
            path.write_bytes(apply(self.sound, json.loads(content)))
        else:
            path.write_bytes(content)
        if self.kind != "model":
            return self._worker.feed(kind=self.kind, path=str(path))
        results = self.folder / "results.npz"
        results.unlink(missing_ok=True)
        outcome = self._worker.feed(
            kind="model", path=str(path), seed=seed, save=str(results), target=self.target
        )
        if outcome.what == "ok" and results.exists() and self._wrong is not None:
            verdict = self._judge.feed(path=str(path), results=str(results))
            self.counts[f"onnxruntime: {verdict.what}"] += 1
            if verdict.what == "wrong":
                return Outcome("wrong", verdict.message, f"{_operators(content)} {verdict.where}")
        return outcome

    def take(self, content: bytes, seed: int) -> None:
        """Feed a file, and keep it if it is a new finding."""
        outcome = self.feed(content, seed)
        self.counts[outcome.what] += 1
        if not outcome.finding:
            return
        self.findings[outcome.key] += 1
        if self.findings[outcome.key] > 1:
            return
        print(f"seed {seed}: {outcome.key}", flush=True)
        small, last = self._smallest(content, seed, outcome)
        if outcome.what == "wrong":
            # One line per set of operators that no smaller set explains.
            if last.key != outcome.key and last.key in self.findings:
                return
            self.findings[last.key] += 1
        folder = self._wrong if outcome.what == "wrong" else self._corpus
        if folder is None or len(small) > _LARGEST:
            return
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(small).hexdigest()[:16]
        (folder / f"{name}.bin").write_bytes(small)
        line = f"{last.key}: {last.message.strip().splitlines()[-1][:300] if last.message else ''}"
        (folder / f"{name}.txt").write_text(f"{line} (seed {seed})\n")

    def _smallest(self, content: bytes, seed: int, outcome: Outcome) -> tuple[bytes, Outcome]:
        last = outcome

        def still(candidate: bytes) -> bool:
            nonlocal last
            new = self.feed(candidate, seed)
            same = new.what == "wrong" if outcome.what == "wrong" else new.key == outcome.key
            last = new if same else last
            return same

        if outcome.what == "hang" or self.kind == "programs":
            return content, outcome
        if self.kind == "model":
            return minimise_model(content, still, 10 if outcome.what == "wrong" else 60), last
        edits = minimise_edits(json.loads(content), lambda fewer: still(json.dumps(fewer).encode()))
        return json.dumps(edits).encode(), last


def _operators(content: bytes) -> str:
    import onnx

    graph = onnx.ModelProto.FromString(content).graph
    return ",".join(sorted({node.op_type for node in graph.node}))


def _files(fuzzer: Fuzzer, first: int, sources: Sequence[str]) -> Iterator[tuple[int, bytes]]:
    make: Callable[[int], bytes]
    if fuzzer.kind == "model":
        from tests.fuzz.graphs import random_file

        make = functools.partial(random_file, sources=sources)
    elif fuzzer.kind == "artifact":
        manifest = fuzzer.manifest()

        def make(seed: int) -> bytes:
            return json.dumps(random_edits(seed, manifest)).encode()
    else:
        make = random_pack
    for seed in range(first, first + 10**9):
        yield seed, make(seed)


def run(
    kind: str,
    minutes: float,
    seed: int,
    corpus: Path | None,
    wrong: Path | None,
    sources: Sequence[str] = (),
    target: str = "llvm",
) -> Fuzzer:
    """One job."""
    deadline = time.monotonic() + 60 * minutes
    with Fuzzer("model" if kind == "bytes" else kind, corpus, wrong, target) as fuzzer:
        if kind == "bytes":
            from tests.fuzz.guided import found_by_coverage

            for content in found_by_coverage(deadline, seed):
                fuzzer.take(content, seed)
            return fuzzer
        for number, content in _files(fuzzer, seed, sources):
            if time.monotonic() > deadline:
                break
            fuzzer.take(content, number)
    return fuzzer


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=("model", "bytes", "artifact", "programs"), required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(10**9))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--corpus", type=Path, help="default: tests/fuzz/corpus/KIND")
    parser.add_argument(
        "--wrong", type=Path, help="compare with ONNX Runtime; where to keep what differs"
    )
    parser.add_argument(
        "--source",
        action="append",
        choices=("tests", "graphs", "exported"),
        default=[],
        help="of models; default: all, may be given several times",
    )
    parser.add_argument(
        "--target",
        choices=("llvm", "opencl"),
        default="llvm",
        help="of models, and of the artifact that is damaged",
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    corpus = options.corpus or CORPUS / ("model" if options.kind == "bytes" else options.kind)
    if options.jobs > 1:
        command = [sys.executable, "-m", "tests.fuzz.campaign", *_without_jobs(sys.argv[1:])]
        jobs = [
            subprocess.Popen([*command, "--seed", str(options.seed + i * 10**9)], cwd=ROOT)
            for i in range(options.jobs)
        ]
        return max(job.wait() for job in jobs)
    print(f"{options.kind}: {options.minutes} minutes from seed {options.seed}", flush=True)
    fuzzer = run(
        options.kind,
        options.minutes,
        options.seed,
        corpus,
        options.wrong,
        options.source,
        options.target,
    )
    for what, count in fuzzer.counts.most_common():
        print(f"{count:8d}  {what}")
    for key, count in fuzzer.findings.most_common():
        print(f"{count:8d}  FINDING {key}")
    return 1 if fuzzer.findings else 0


def _without_jobs(arguments: list[str]) -> list[str]:
    at = next(i for i, a in enumerate(arguments) if a.startswith("--jobs"))
    return arguments[:at] + arguments[at + (1 if "=" in arguments[at] else 2) :]


if __name__ == "__main__":
    sys.exit(main())
