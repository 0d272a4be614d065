"""``python -m benchmarks list``, and ``python -m benchmarks run NAME [OPTIONS]``."""

from __future__ import annotations

from itertools import groupby

import click

from benchmarks.catalogue import BENCHMARKS
from benchmarks.pages.render import write_pages

__all__ = ["benchmarks"]


@click.group()
def benchmarks() -> None:
    """Measure tvm-edge; what was found stands in benchmarks/RESULTS.md."""


@benchmarks.command("list")
def show() -> None:
    """List the benchmarks: name, subject, and what else has to be there."""
    for topic, rows in groupby(BENCHMARKS.items(), key=lambda row: row[1].topic):
        click.secho(topic, bold=True)
        for name, benchmark in rows:
            needs = f"  [{benchmark.needs}]" if benchmark.needs else ""
            click.echo(f"  {name:<20} {benchmark.about}{needs}")


@benchmarks.command("pages")
def write() -> None:
    """Write RESULTS.md, its areas' pages and the README's figures from benchmarks/results."""
    for path in write_pages():
        click.echo(f"wrote {path}")


# What stands after the name is the benchmark's, --help too.
@benchmarks.command(context_settings={"allow_interspersed_args": False})
@click.argument("name", type=click.Choice(list(BENCHMARKS)), metavar="NAME")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def run(name: str, options: tuple[str, ...]) -> None:
    """Run a benchmark; its own options are shown by `run NAME --help`."""
    BENCHMARKS[name].run(options)


if __name__ == "__main__":
    benchmarks(prog_name="python -m benchmarks")
