"""Registers, spills and shared memory of every CUDA kernel, compiled without a GPU.

Networks are compiled for boards and architectures that are not here, as ``tvm_edge.compile`` does
it, and nvcc compiles their kernels with the options that it has there. A row for each network,
target and precision: kernels, most registers of a work-item, most shared memory of a work-group,
kernels that spill registers and the bytes of the worst, and kernels that the device could not
launch, for want of registers or of shared memory. ``int8`` is the network quantised by ONNX
Runtime's tool. Nothing is timed.

With ``--json`` what the file has stays and is not compiled again: the zoo can be done in parts.
``--page`` writes the table into its section of the results, and compiles nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common.options import Parser, save_json
from benchmarks.pages.sections import put_table

__all__ = ["Kernel", "ptxas_output", "read_ptxas", "split_kernels", "table"]

TARGETS: Mapping[str, Any] = {
    "jetson-orin-nano": "jetson-orin-nano",
    "jetson-agx-orin": "jetson-agx-orin",
    "sm_75": {"kind": "cuda", "arch": "sm_75"},
}
PRECISIONS = ("mixed", "tf32", "int8", "float32")
_SECTION = "gpu/compiled"

# Registers of a multiprocessor, and shared memory of a work-group at most, by architecture (CUDA
# C++ Programming Guide, "Technical Specifications per Compute Capability").
_REGISTERS = 65536
_SHARED = {"sm_75": 64 << 10, "sm_87": 163 << 10}

# As TVM calls it (`tvm.support.nvcc`) with IEEE arithmetic, and for the code of a device alone.
_NVCC = (
    "nvcc -cubin -O3 --expt-relaxed-constexpr --expt-extended-lambda -U__CUDA_NO_HALF_OPERATORS__ "
    "-U__CUDA_NO_HALF_CONVERSIONS__ --ptxas-options=-v,--register-usage-level=10"
).split()

_DECLARED = re.compile(r'^extern "C" __global__ [^\n]*;$', re.M)
_DEFINED = re.compile(r'^extern "C" __global__ void __launch_bounds__\((\d+)\) (\w+)\(', re.M)
_PTXAS = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)",
    re.S,
)
_STATIC = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Kernel:
    """One kernel as nvcc compiled it.

    Attributes
    ----------
    name : str
    items : int
        Work-items of a work-group, at most.
    registers : int
        Of a work-item.
    stack, spilled : int
        Bytes of a work-item: its arrays in memory, and registers that were stored there.
    shared : int
        Bytes of a work-group.
    """

    name: str
    items: int
    registers: int = 0
    stack: int = 0
    spilled: int = 0
    shared: int = 0

    def fits(self, arch: str) -> bool:
        """Return whether a device can launch it; registers come in eights."""
        registers = -(-self.registers // 8) * 8 * self.items
        return registers <= _REGISTERS and self.shared <= _SHARED[arch]


def split_kernels(source: str) -> tuple[str, dict[str, tuple[int, str]]]:
    """Split CUDA C into what stands before the kernels, and work-items and text of each kernel."""
    source = _DECLARED.sub("", source)
    found = list(_DEFINED.finditer(source))
    ends = [match.start() for match in found[1:]] + [len(source)]
    texts = {
        match[2]: (int(match[1]), source[match.start() : end])
        for match, end in zip(found, ends, strict=True)
    }
    return source[: found[0].start()] if found else source, texts


def read_ptxas(output: str) -> Iterator[Kernel]:
    """Read what ``ptxas -v`` says of each kernel; it does not know the work-items."""
    for match in _PTXAS.finditer(output):
        static = _STATIC.search(match[6])
        spilled = max(int(match[3]), int(match[4]))
        shared = int(static[1]) if static else 0
        yield Kernel(match[1], 0, int(match[5]), int(match[2]), spilled, shared)


class _Compiler:
    """Compiles kernels, those of one text once."""

    def __init__(self) -> None:
        self._known: dict[str, Kernel] = {}

    def kernels(self, source: str, arch: str) -> list[Kernel]:
        """Return the kernels of a module."""
        head, texts = split_kernels(source)
        keys = {
            name: hashlib.sha256(f"{arch} {text.replace(name, '')}".encode()).hexdigest()
            for name, (_, text) in texts.items()
        }
        unknown = {keys[name]: name for name in texts if keys[name] not in self._known}
        if unknown:
            wanted = "".join(texts[name][1] for name in unknown.values())
            made = {kernel.name: kernel for kernel in read_ptxas(ptxas_output(head + wanted, arch))}
            self._known |= {key: made[name] for key, name in unknown.items()}
        return [
            replace(self._known[keys[name]], name=name, items=items)
            for name, (items, _) in texts.items()
        ]


def ptxas_output(source: str, arch: str) -> str:
    """Compile CUDA C with nvcc, and return what ``ptxas -v`` says of its kernels."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels.cu")
        path.write_text(source)
        command = [*_NVCC, "-arch", arch, "-o", str(path.with_suffix(".cubin")), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"nvcc failed: {done.stderr[-2000:]}")
    return done.stderr


def _dynamic_shared(module: Any) -> dict[str, int]:
    """Return the most bytes that a launch of each function asks for as dynamic shared memory."""
    import tvm_ffi
    from tvm import tirx

    most: dict[str, int] = {}
    for gvar, func in module.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        sizes = [0]

        def visit(made: Any, sizes: list[int] = sizes) -> None:
            if made.buffer.scope() == "shared.dyn":
                sizes.append(int(made.buffer.shape[0]))

        for kind in (tirx.AllocBuffer, tirx.DeclBuffer):
            tvm_ffi.structural_walk(func.body, (kind, visit))
        most[gvar.name_hint] = max(sizes)
    return most


def _compiled(network: str, target: str, precision: str, compiler: _Compiler) -> dict[str, Any]:
    from tvm_edge import zoo
    from tvm_edge.compiler import driver
    from tvm_edge.compiler.build import build
    from tvm_edge.compiler.options import Options
    from tvm_edge.lowering.deep_stack import on_deep_stack

    model = zoo.build(network)
    if precision == "int8":
        from benchmarks.models.int8_models import quantized

        model = quantized(network)
    wanted = "float32" if precision == "int8" else precision
    done = driver.lowered(model, TARGETS[target], Options(precision=wanted, fallback="none"))
    library = on_deep_stack(lambda: build(done.module, done.resolved))
    dynamic, arch = _dynamic_shared(done.module), str(done.resolved.target.attrs["arch"])
    kernels = []
    for source in library.device_sources():
        for kernel in compiler.kernels(source, arch):
            own = dynamic.get(re.sub(r"_kernel(_\d+)?$", "", kernel.name), 0)
            kernels.append(replace(kernel, shared=kernel.shared + own))
    return {
        "kernels": len(kernels),
        "registers": max(kernel.registers for kernel in kernels),
        "shared": max(kernel.shared for kernel in kernels),
        "spilling": [asdict(kernel) for kernel in kernels if kernel.spilled],
        "over": [asdict(kernel) for kernel in kernels if not kernel.fits(arch)],
    }


def _key(target: str, precision: str, network: str) -> str:
    return f"{target} {precision} {network}"


_COLUMNS = [
    *("target", "precision", "network", "kernels", "most registers"),
    *("most shared memory, KiB", "spilling", "worst, bytes", "cannot be launched"),
]


def table(rows: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return a row of cells for each result, by target, precision and network."""
    found = []
    for key in sorted(rows):
        row = rows[key]
        worst = max((kernel["spilled"] for kernel in row["spilling"]), default=0)
        counts = (len(row["spilling"]), worst, len(row["over"]))
        figures = (row["kernels"], row["registers"], f"{row['shared'] / 1024:.0f}")
        found.append([*key.split(), *map(str, figures), *(str(n or "–") for n in counts)])
    return found


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    from tvm_edge import zoo

    parser = Parser("gpu_compiled", __doc__)
    parser.shared(networks=list(zoo.names()), targets=list(TARGETS), json=None)
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--page", action="store_true", help="put the rows into their section")
    parser.add_argument("--most", type=int, metavar="N", help="rows to compile; default all")
    options = parser.parse_args(arguments)
    path = options.json
    rows: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {}
    if options.page:
        put_table(_SECTION, _COLUMNS, table(rows))
        return
    compiler = _Compiler()
    wanted = product(options.targets, options.precision, options.networks)
    missing = [row for row in wanted if _key(*row) not in rows]
    for target, precision, network in missing[: options.most]:
        key = _key(target, precision, network)
        rows[key] = _compiled(network, target, precision, compiler)
        print(table({key: rows[key]})[-1], file=sys.stderr, flush=True)
        save_json(path, rows)
    print("\n".join("  ".join(row) for row in table(rows)))
