"""Tables of the four papers with figures of tvm-edge beside them.

Runs the benchmarks that measure what the papers show (:mod:`benchmarks.papers.jobs`), each by its
own command line, and writes what they found beside the papers' figures into ``results/papers.md``,
with pictures. Figures that other sections have are quoted (``results/papers/quotes.json``). Needs
``pip install -e '.[bench]'``.

``--quick``
    In less than six minutes on two cores, with pocl as the OpenCL device: one round, small
    networks. It shows that everything runs. What it leaves out is said to be not measured, and the
    page is written to the folder of ``--save``. ``--limit SECONDS`` (330) is for slower machines.
``--from FOLDER …``
    Measures nothing: reads what ``--save`` wrote, of any number of machines. The committed page is
    made ``--from benchmarks/results/measured``, a folder for each machine.
``--save FOLDER``
    Where the benchmarks' JSON and what they printed go (default ``build/paper_tables``, with
    ``--quick`` ``build/paper_tables_quick``).
``--targets llvm opencl cuda``, ``--jobs NAME …``
    Choose; ``--list`` prints the jobs with their commands. Default: all that run here, for hours.
``--results FILE``
    The page to write (default ``benchmarks/results/papers.md``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from benchmarks.common.options import Among, Parser
from benchmarks.common.paths import RESULTS
from benchmarks.papers import plots
from benchmarks.papers.jobs import Job, jobs, machine_here, measure
from benchmarks.papers.measurements import Results, read_results
from benchmarks.papers.render import papers_part
from benchmarks.papers.sources import with_committed

_SAVE = "build/paper_tables"  # and beside it that of quick runs
_TARGETS = ("llvm", "opencl", "cuda")
_QUICK_SECONDS = 330.0  # of all jobs of a quick run; six minutes with pictures and the page
_LEAST_SECONDS = 20.0  # that a job of a quick run is started for


def _measure(options: argparse.Namespace) -> None:
    """Run the jobs, one after the other, and keep what each found at once."""
    begin = perf_counter()
    machine = machine_here()
    here = [t for t in options.targets if t in machine["devices"]]
    for job in _chosen(options, here, machine["devices"]):
        left = options.limit - (perf_counter() - begin)
        if options.quick and left < _LEAST_SECONDS:
            print(f"{job.name}: left out, no time", flush=True)
            continue
        start = perf_counter()
        print(f"{job.name}: {job.command(options.quick)}", flush=True)
        limit = {"seconds": left} if options.quick else {}
        found = measure(job, machine, options.save, quick=options.quick, **limit)
        found.save(options.save)
        print(f"  {found.failed or 'done'}, {perf_counter() - start:.0f} s", flush=True)


def _chosen(
    options: argparse.Namespace, targets: Sequence[str], devices: dict[str, dict[str, object]]
) -> list[Job]:
    found = jobs(targets, devices)
    known = {job.name for job in found}
    if unknown := set(options.jobs or ()) - known:
        raise SystemExit(f"no job {', '.join(sorted(unknown))} here; known: {', '.join(known)}")
    chosen = [
        job
        for job in found
        if (not options.jobs or job.name in options.jobs)
        and (not options.quick or job.quick is not None)
    ]
    if not chosen:
        raise SystemExit("none of these jobs is of a quick run; leave --quick out")
    return chosen


def _write(results: Results, target: Path) -> None:
    """Write the page, and its pictures."""
    target.parent.mkdir(parents=True, exist_ok=True)
    pictures = plots.draw(results, target.parent)
    target.write_text(papers_part(results, pictures), encoding="utf-8")
    print(f"wrote {target}{''.join(f', {name}' for name in pictures.values())}")


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = Parser("paper_tables", __doc__)
    parser.shared(targets=Among(_TARGETS, _TARGETS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--limit", type=float, default=_QUICK_SECONDS)
    parser.add_argument("--from", dest="folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--jobs", nargs="+", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args(arguments)
    options.save = options.save or Path(f"{_SAVE}_quick" if options.quick else _SAVE)
    if options.list:
        machine = machine_here()
        here = [t for t in options.targets if t in machine["devices"]]
        for job in _chosen(options, here, machine["devices"]):
            print(f"{job.name:<16} {job.command(options.quick)}")
        return
    if options.folders is None:
        options.save.mkdir(parents=True, exist_ok=True)
        _measure(options)
    results = read_results(options.folders or [options.save])
    if not len(results):
        sys.exit("nothing was measured; run it without --from, or name a folder with results")
    default = (options.save if options.quick else RESULTS) / "papers.md"
    _write(with_committed(results), options.results or default)
