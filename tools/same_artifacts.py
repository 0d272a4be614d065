"""Compare what two commits compile: a refactoring shows that it changed no code.

::

    python tools/same_artifacts.py BASE              # this checkout against commit BASE
    python tools/same_artifacts.py BASE --zoo        # every network, machine code to the byte
    python tools/same_artifacts.py BASE --only cuda  # cases whose name contains "cuda"

Each case is a model, a target and options. Compared are the structural hashes of the functions that
enter code generation and of the Relax module whose instructions call them, the artifact's manifest
with the report, and the digest of its weights. With ``--zoo`` every network is generated as well:
objects of LLVM to the byte, OpenCL and CUDA as source. No device is needed, but for the target
``opencl``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_AT_ONCE = 2  # processes: what a compilation takes outside of LLVM is one thread's

_AVX2 = {"kind": "llvm", "mcpu": "haswell", "num-cores": 4}
_AVX512 = {"kind": "llvm", "mcpu": "icelake-server", "num-cores": 4}
_TARGETS: Mapping[str, Any] = {
    "avx2": _AVX2,
    "avx512": _AVX512,
    "neon": "arm/rk3399",
    "pocl": "opencl",
    "mali": "mali-t860",
    "adreno": "adreno-650",
    "intel": "intel-hd505",
    "cuda": "jetson-orin-nano",
}
# Hosts of a GPU are this machine's, unless the preset names one.
_HOSTED = frozenset(("pocl", "adreno", "cuda"))
_NETWORKS = ("mobilenet_v2", "squeezenet1_0", "googlenet", "shapes_ssd")

# Options that reach a variant of the compiler, and the network and targets that show it.
_VARIANTS: tuple[tuple[str, str, tuple[str, ...], Mapping[str, Any]], ...] = (
    ("tf32", "googlenet", ("cuda",), {"precision": "tf32"}),
    ("mixed", "mobilenet_v2", ("cuda", "mali", "intel"), {"precision": "mixed"}),
    (
        "float16",
        "squeezenet1_0",
        ("cuda", "adreno"),
        {"precision": "float16", "precision_exceptions": ["conv10"]},
    ),
    ("budget", "googlenet", ("avx2", "mali", "cuda"), {"memory_budget": "80MiB"}),
    ("budget", "yolov1_small", ("avx512", "adreno"), {"memory_budget": "200MiB"}),
    (
        "fusion",
        "googlenet",
        ("avx512", "neon", "mali", "intel", "cuda"),
        {"parallel_fusion": True},
    ),
    ("no fusion", "googlenet", ("mali", "cuda"), {"parallel_fusion": False}),
    ("no records", "googlenet", ("avx512", "cuda", "pocl"), {"tuning_logs": False}),
    ("list", "shapes_ssd", ("mali", "cuda"), {"fallback": "list"}),
    ("none", "mobilenet_v2", ("adreno",), {"fallback": "none"}),
    ("named", "shapes_ssd", ("intel", "cuda"), {"fallback": ["Softmax", "NonMaxSuppression"]}),
    ("int8", "mobilenet_v2_int8", ("avx2", "avx512", "neon", "mali", "cuda"), {}),
    ("head", "faster_rcnn_head", ("avx2", "mali", "cuda"), {}),
)


def _cases(whole_zoo: bool) -> dict[str, Callable[[], Iterator[Any]]]:
    """Compilations by name; each yields compiled models."""
    import tvm_edge
    from tvm_edge import zoo

    found: dict[str, Callable[[], Iterator[Any]]] = {}

    def add(name: str, model: Any, target: str, **options: Any) -> None:
        def compiled() -> Iterator[Any]:
            yield tvm_edge.compile(model, _TARGETS[target], host=_host(target), **options)

        found[f"{name} {target}"] = compiled

    if whole_zoo:
        names = (zoo.names(), zoo.trained_names(), zoo.quantized_names())
        for network in (name for group in names for name in group):
            for target in _TARGETS:
                add(network, f"zoo:{network}", target)
        return found
    for network in _NETWORKS:
        for target in _TARGETS:
            add(network, f"zoo:{network}", target)
    for label, network, targets, options in _VARIANTS:
        for target in targets:
            add(f"{network}, {label}", f"zoo:{network}", target, **options)
    two = {"a": "zoo:mobilenet_v2", "b": "zoo:shapes_ssd"}
    for target in ("avx2", "mali", "cuda"):
        add("two models", two, target, parallel_fusion=True)
    for target in ("avx512", "mali", "cuda"):
        found[f"plans {target}"] = partial(_plans, target)
        found[f"tunable {target}"] = partial(_tunable, target)
    return found


def _host(target: str) -> Any:
    return _AVX2 if target in _HOSTED else None


def _plans(target: str) -> Iterator[Any]:
    """Every variant that a memory budget chooses from, carried out."""
    from tvm_edge.compiler.driver import compile_with
    from tvm_edge.memory.plans import Plan

    for way in (
        Plan("without Winograd", winograd=False),
        Plan("split layers", weight_window=1 << 19),
        Plan("all streamed", winograd=False, weight_window=1 << 19, conv_window=1 << 19),
    ):
        yield compile_with("zoo:googlenet", _TARGETS[target], {}, host=_host(target), way=way)


def _tunable(target: str) -> Iterator[Any]:
    """Kernels as ``tune`` measures them: the first configurations of a few convolutions."""
    import numpy as np

    from tvm_edge.compiler.driver import compile_with

    try:
        from tvm_edge.tuning.tunable import convolutions_of
    except ImportError:  # before 0.2
        from tvm_edge.compiler.tunable import convolutions_of
    from tvm_edge.hardware import resolve_target
    from tvm_edge.runtime.candidates import Operands
    from tvm_edge.schedules.conv_records import config_space
    from tvm_edge.tuning.candidates import build_candidate

    host = _host(target)
    resolved = resolve_target(_TARGETS[target], host)
    workloads = list(convolutions_of("zoo:mobilenet_v2", resolved))[:6]
    for workload in workloads:
        shape = (workload.batch, workload.channels, workload.height, workload.width)
        own = workload.channels // workload.groups
        filters = np.ones((workload.filters, own, *workload.kernel), "float32")
        bias = np.ones(workload.filters, "float32")
        operands = Operands(np.ones(shape, "float32"), filters, bias, np.ones(1, "float32"))
        for config in config_space(workload, resolved.spec).top(2):
            if resolved.kind == "llvm":
                yield build_candidate(workload, config, operands, _TARGETS[target], {})
            else:
                configs = {workload: config}
                yield compile_with("zoo:mobilenet_v2", _TARGETS[target], configs, host=host)


# ------------------------------------------------------------------------------- in one checkout


class Recorder:
    """Notes what enters code generation, and generates none of a model's.

    What the compiler builds to evaluate constants is built.

    Parameters
    ----------
    generate : bool
        Note machine code and source as well.
    """

    def __init__(self, generate: bool) -> None:

        self.notes: list[str] = []
        self._generate = generate
        self._of_model = False
        from tvm_edge.compiler import build, driver

        module = sys.modules["tvm.tirx.build"]
        self._codegen = module.codegen_build  # type: ignore[attr-defined]
        module.codegen_build = self._noted  # type: ignore[attr-defined]
        build_model = build.build

        def noted(mod: Any, *args: Any, **kwargs: Any) -> Any:
            self.notes.append(f"relax {_hash(mod)}")
            self._of_model = True
            try:
                return build_model(mod, *args, **kwargs)
            finally:
                self._of_model = False

        driver.build = noted  # type: ignore[assignment]
        build.BuiltLibrary.link = (  # type: ignore[method-assign]
            lambda _self, path: Path(path).write_bytes(b"code") and None
        )

    def _noted(self, mod: Any, target: Any) -> Any:
        import tvm
        from tvm import tirx

        if not self._of_model:
            return self._codegen(mod, target)
        # Function by function, in whichever modules they are generated.
        for gvar, func in mod.functions_items():
            if str(gvar.name_hint) == "nothing":  # of a library without any other code
                continue
            alone = tvm.IRModule({gvar: func})
            self.notes.append(f"{target} {gvar.name_hint} {_hash(alone)}")
            if self._generate:
                code = self._code(alone, target)
                self.notes.append(f"{target.kind.name} code of {gvar.name_hint} {code}")
        if target.kind.name != "llvm":
            return None
        nothing = tirx.PrimFunc([], tirx.Evaluate(tirx.const(0, "int32")))
        nothing = nothing.with_attr({"global_symbol": "nothing", "tirx.is_host_func": True})
        here = tvm.target.Target("llvm")
        return self._codegen(tvm.IRModule({"nothing": nothing.with_attr("target", here)}), here)

    def _code(self, mod: Any, target: Any) -> str:
        import tvm_ffi

        if target.kind.name == "cuda":
            source = []

            class Taken(Exception):
                """The source is known, and nobody here compiles it."""

            def take(code: str, *_rest: Any) -> Any:
                source.append(code)
                raise Taken

            tvm_ffi.register_global_func("tvm_callback_cuda_compile", take, override=True)
            try:
                self._codegen(mod, target)
            except (Taken, RuntimeError):
                if not source:
                    raise
            return _digest(source[0].encode())
        code = self._codegen(mod, target)
        if target.kind.name == "opencl":
            return _digest(code.inspect_source().encode())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "code.o")
            code.write_to_file(str(path), "o")
            return _digest(path.read_bytes())


def _hash(mod: Any) -> str:
    """Digest of a module, by function: their order and the names of variables do not matter."""
    import tvm_ffi

    def of(name: str, func: Any) -> Any:
        if name.startswith("shape_func"):  # TVM writes its lines in the order of addresses
            return sorted(func.script().splitlines())
        return tvm_ffi.structural_hash(func, map_free_vars=True)

    own = ((str(gvar.name_hint), func) for gvar, func in mod.functions_items())
    return _digest(repr(sorted((name, of(name, func)) for name, func in own)).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _describe(name: str, make: Callable[[], Iterator[Any]], recorder: Recorder) -> dict[str, Any]:
    from tvm_edge import TvmEdgeError

    recorder.notes.clear()
    entry: dict[str, Any] = {"models": []}
    try:
        for model in make():
            if not hasattr(model, "export"):  # a candidate of a CPU, a bare kernel
                continue
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "model.tvme")
                model.export(path)
                entry["models"].append(_artifact(path))
    except TvmEdgeError as err:
        entry["error"] = f"{type(err).__name__}: {err}"
    entry["code"] = sorted(recorder.notes)  # threads generate it
    return entry


def _artifact(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        weights = _digest(archive.read("weights.bin"))
        names = sorted(archive.namelist())
    manifest.pop("checksums", None)
    manifest.pop("versions", None)
    manifest.get("report", {}).pop("seconds", None)
    return {"manifest": manifest, "weights": weights, "members": names}


def _child(arguments: argparse.Namespace) -> None:
    """Describe cases with the package of the checkout that this runs in, one JSON line for each."""
    source = Path(arguments.source)
    sys.meta_path[:] = [each for each in sys.meta_path if "ScikitBuild" not in type(each).__name__]
    sys.path.insert(0, str(source))
    warnings.simplefilter("ignore")
    import tvm_edge

    assert Path(tvm_edge.__file__).is_relative_to(source), tvm_edge.__file__
    recorder = Recorder(arguments.zoo)
    cases = _cases(arguments.zoo)
    known = json.loads(Path(arguments.known).read_text())
    names = [name for name in cases if arguments.only in name and name not in known]
    for name in names[arguments.child :: _AT_ONCE]:
        entry = _describe(name, cases[name], recorder)
        print("@" + json.dumps({name: entry}).replace(f"{source}/", ""), flush=True)


# ------------------------------------------------------------------------------ of two checkouts


def _described(source: Path, zoo: bool, only: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Cases that are not `known` yet, by the package in a folder, in processes of its own."""
    runtime = find_spec("tvm_edge.opencl")
    assert runtime is not None and runtime.submodule_search_locations is not None
    for folder in runtime.submodule_search_locations:
        for library in Path(folder).glob("*.so"):  # built for this environment
            if not (source / "tvm_edge/opencl" / library.name).exists():
                shutil.copy(library, source / "tvm_edge/opencl")

    def one(number: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            names = Path(folder, "known.json")
            names.write_text(json.dumps(list(known)))
            command = [sys.executable, __file__, "-", "--source", str(source), "--only", only]
            command += ["--known", str(names), "--child", str(number), *["--zoo"] * zoo]
            environment = {**os.environ, "TVM_EDGE_CACHE": "0"}
            environment["TVM_EDGE_TUNING_LOGS"] = str(Path(folder, "none"))
            lines = subprocess.check_output(command, text=True, env=environment, cwd=source)
        found = {}
        for line in lines.splitlines():
            if line.startswith("@"):
                found.update(json.loads(line[1:]))
        return found

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        parts = list(pool.map(one, range(_AT_ONCE)))
    return {name: entry for part in parts for name, entry in part.items()}


def _differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Return the places where two values of JSON differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            yield from _differences(before.get(key), after.get(key), f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (left, right) in enumerate(zip(before, after, strict=True)):
            yield from _differences(left, right, f"{path}[{number}]")
    elif before != after:
        yield f"{path}: {json.dumps(before)[:160]} became {json.dumps(after)[:160]}"


def _of_commit(commit: str, zoo: bool, only: str, cache: Path | None) -> dict[str, Any]:
    """Describe the cases of a commit; a `cache` keeps them."""
    full = subprocess.check_output(["git", "rev-parse", commit], cwd=_ROOT, text=True).strip()
    kept = cache / f"{full}{'-zoo' if zoo else ''}.json" if cache else None
    known = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "checkout")
        add = ["git", "worktree", "add", "-q", "--detach", str(source), full]
        subprocess.check_call(add, cwd=_ROOT)
        try:
            known |= _described(source, zoo, only, known)
        finally:
            subprocess.check_call(["git", "worktree", "remove", "--force", str(source)], cwd=_ROOT)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(known))
    return {name: entry for name, entry in known.items() if only in name}


def main() -> int:
    """Print what differs; 0 if nothing does."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("base", help="the commit to compare this checkout with")
    parser.add_argument("--zoo", action="store_true", help="every network, to the byte")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--cache", type=Path, help="a folder that keeps what BASE compiles")
    for internal in ("--source", "--known"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        _child(arguments)
        return 0
    before = _of_commit(arguments.base, arguments.zoo, arguments.only, arguments.cache)
    after = _described(_ROOT, arguments.zoo, arguments.only, {})
    different = 0
    for name in dict.fromkeys((*before, *after)):
        found = list(_differences(before.get(name), after.get(name)))
        different += bool(found)
        for line in found[:5]:
            print(f"{name}{line}")
    print(f"{len(after)} cases, {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
