"""Mutation of model files guided by coverage, with Google's atheris (``pip install atheris``).

libFuzzer keeps a mutation that reaches code no other file reached: of our frontend and compiler and
of TVM's importer, which is Python too. It runs in a child, which a crash ends; what it stumbles
over, the campaign feeds to a worker as any other file.
"""

from __future__ import annotations

import hashlib
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.worker import MEMORY_LIMIT, ROOT, SECONDS_PER_FILE

__all__ = ["found_by_coverage"]

_SEEDS = 600
_LARGEST = 6000  # bytes; libFuzzer works best on small files


def found_by_coverage(deadline: float, seed: int) -> Iterator[bytes]:
    """Files that ended in anything but success or a ``TvmEdgeError``, until the deadline."""
    with tempfile.TemporaryDirectory(prefix="tvm-edge-guided-") as name:
        folder = Path(name)
        seeds, found = folder / "seeds", folder / "found"
        for new in (seeds, found):
            new.mkdir()
        _write_seeds(seeds, seed)
        started = 0
        while (left := int(deadline - time.monotonic())) > 5:
            command = [sys.executable, "-m", "tests.fuzz.guided", str(found), str(seeds)]
            limits = [
                f"-seed={seed + started + 1}",
                f"-max_total_time={left}",
                f"-timeout={SECONDS_PER_FILE}",
                f"-rss_limit_mb={MEMORY_LIMIT >> 20}",
                f"-max_len={_LARGEST}",
                f"-artifact_prefix={found}/crash-",
                "-print_final_stats=1",
            ]
            with (folder / "log").open("ab") as out:
                child = subprocess.Popen([*command, *limits], cwd=ROOT, stdout=out, stderr=out)
                while child.poll() is None:
                    time.sleep(1)
                    yield from _new(found)
            yield from _new(found)
            started += 1
            if "No module named 'atheris'" in (folder / "log").read_text(errors="replace"):
                raise SystemExit("this kind needs atheris; run: pip install atheris")
        log = (folder / "log").read_text(errors="replace")
        executed = sum(int(n) for n in re.findall(r"stat::number_of_executed_units: (\d+)", log))
        print(f"{executed:8d}  files tried, of which those below were handed on", flush=True)


def _new(found: Path) -> Iterator[bytes]:
    for path in sorted(found.iterdir()):
        content = path.read_bytes()
        path.unlink()
        yield content


def _write_seeds(folder: Path, seed: int) -> None:
    from tests.fuzz.graphs import random_graph, with_constants

    rng = random.Random(seed)
    for i in range(_SEEDS):
        model = with_constants(rng) if i % 2 else random_graph(rng)
        content = model.SerializeToString()
        if len(content) <= _LARGEST:
            (folder / f"{i}.onnx").write_bytes(content)


def _main(found: Path, arguments: list[str]) -> None:
    import atheris

    warnings.simplefilter("ignore")
    with atheris.instrument_imports(
        include=["tvm_edge.frontend", "tvm_edge.compiler", "tvm.relax.frontend.onnx"],
        enable_loader_override=False,
    ):
        import tvm.relax.frontend.onnx.onnx_frontend  # noqa: F401

        import tvm_edge
        import tvm_edge.frontend.onnx_import
    import onnx

    from tests.fuzz.mutations import mutate_model

    warnings.simplefilter("ignore")
    seen: set[str] = set()

    def one(data: bytes) -> None:
        try:
            tvm_edge.compile(data, "llvm")
        except tvm_edge.TvmEdgeError:
            pass
        except Exception as err:
            trace = err.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            key = f"{type(err)} {trace and (trace.tb_frame.f_code, trace.tb_lineno)}"
            if key not in seen:
                seen.add(key)
                (found / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)

    def mutate(data: bytes, largest: int, seed: int) -> Any:
        if seed % 2:
            try:
                model = onnx.ModelProto.FromString(data)
                if model.graph.node:
                    return mutate_model(model, seed)[:largest]
            except Exception:  # not a model any more
                pass
        return atheris.Mutate(data, largest)

    atheris.Setup([sys.argv[0], *arguments], one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])
