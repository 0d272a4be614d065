"""``tvm-edge db merge | prune | export | import``: what writes records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click

from tvm_edge.cli import options, printing
from tvm_edge.cli.db_stores import columns, find_store, folder_option
from tvm_edge.records import (
    DATABASE,
    Database,
    LinesFile,
    Pruned,
    TuningRecord,
    add_records,
    best_lines,
    open_store,
    stores_below,
    user_folder,
    write_lines,
)

__all__ = ["export_command", "import_command", "merge_command", "prune_command"]

_OUTPUT = click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write.",
)


@click.command("merge")
@click.argument("stores", nargs=-1, required=True)
@_OUTPUT
@folder_option
@options.json_option
def merge_command(
    stores: tuple[str, ...], output: Path, folder: Path | None, as_json: bool
) -> None:
    """Merge STORES into one file, .sqlite3 or .jsonl.

    Of two measurements of one configuration the later one stays. A .sqlite3 that exists takes the
    records in; a .jsonl is written anew.
    """
    records = _read([find_store(store, folder) for store in stores])
    if output.suffix == DATABASE:
        with Database(output) as database:
            database.add(records)
            written = database.counts().records
    else:
        written = write_lines(output, records)
    printing.emit(
        as_json,
        {"file": str(output), "read": len(records), "records": written},
        f"{len(records)} records read; {output} has {written}",
    )


@click.command("export")
@click.argument("store")
@_OUTPUT
@click.option("--best", type=click.IntRange(min=1), help="Only so many of each workload.")
@folder_option
@options.json_option
def export_command(
    store: str, output: Path, best: int | None, folder: Path | None, as_json: bool
) -> None:
    """Write the records of STORE as JSON Lines, as they ship."""
    records = _read([find_store(store, folder)])
    written = write_lines(output, best_lines(records, best) if best else records)
    printing.emit(
        as_json, {"file": str(output), "records": written}, f"wrote {output}: {written} records"
    )


@click.command("import", short_help="Take records of files into your own.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@folder_option
@options.json_option
def import_command(files: tuple[Path, ...], folder: Path | None, as_json: bool) -> None:
    """Take the records of FILES into your own, each into the database of its device."""
    records = _read(files)
    added = add_records(user_folder(folder), records)
    for warning in added.warnings:
        click.echo(f"warning: {warning}", err=True)
    rows = [{"file": str(path), "added": count} for path, count in added.files.items()]
    lines = [f"{row['file']}: {row['added']} new or later records" for row in rows]
    printing.emit(as_json, {"read": len(records), "files": rows}, "\n".join(lines) or "no records")


@click.command("prune", short_help="Drop records that no compilation takes.")
@click.argument("stores", nargs=-1)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Records of each workload to keep, the fastest.",
)
@folder_option
@options.json_option
def prune_command(stores: tuple[str, ...], keep: int, folder: Path | None, as_json: bool) -> None:
    """Drop from STORES what no compilation takes: by default from all of your own.

    That is failures, lines that are no records of this version, records of templates that have
    changed, and those after the fastest of their workload.
    """
    paths = [find_store(store, folder) for store in stores] or stores_below(user_folder(folder))
    rows = [{"file": str(path), **asdict(_prune(path, keep))} for path in paths]
    heads = ("failed", "unreadable", "outdated", "slower", "kept")
    table = columns(
        (*heads, "file"), [(*(str(row[h]) for h in heads), str(row["file"])) for row in rows]
    )
    printing.emit(as_json, rows, table if rows else "no records to prune")


def _prune(path: Path, keep: int) -> Pruned:
    from tvm_edge.schedules.conv_records import outdated

    if path.suffix == DATABASE:
        with Database(path) as database:
            return database.prune(keep, outdated)
    records, damages = LinesFile(path).all()
    fine = [record for record in records if record.latencies]
    current = [record for record in fine if not outdated(record)]
    kept = write_lines(path, best_lines(current, keep))
    return Pruned(
        failed=len(records) - len(fine),
        unreadable=len(damages),
        outdated=len(fine) - len(current),
        slower=len(current) - kept,
        kept=kept,
    )


def _read(paths: Iterable[Path]) -> list[TuningRecord]:
    """All records of some files; what is damaged is said, and left out."""
    found: list[TuningRecord] = []
    for path in paths:
        store = open_store(path)
        records, damages = store.all()
        store.close()
        found += records
        for damage in damages:
            click.echo(f"warning: {damage}", err=True)
    return found
