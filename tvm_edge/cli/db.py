"""``tvm-edge db``: what tuning records there are, and whether they are whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tvm_edge.cli import options, printing
from tvm_edge.cli.db_change import export_command, import_command, merge_command, prune_command
from tvm_edge.cli.db_stores import columns, find_store, folder_option, known_stores
from tvm_edge.errors import RecordError
from tvm_edge.records import (
    LAYOUTS,
    SHIPPED,
    LayoutRecord,
    TuningRecord,
    best_lines,
    layouts_below,
    open_store,
    read_layouts,
    user_folder,
)


@click.group("db")
def db_command() -> None:
    """Tuning records: what was measured, by device.

    A STORE is a device's key, as tvm-edge db list shows it, or a file (.sqlite3, .jsonl). Your own
    records are in TVM_EDGE_TUNING_LOGS, else in the platform's data folder; others ship with the
    package.
    """


for _command in (merge_command, prune_command, export_command, import_command):
    db_command.add_command(_command)


@db_command.command("list")
@folder_option
@options.json_option
def list_command(folder: Path | None, as_json: bool) -> None:
    """List the stores: your own and those that ship."""
    rows = []
    for path in known_stores(folder):
        shipped = SHIPPED in path.parents
        row: dict[str, Any] = {"file": str(path), "store": "shipped" if shipped else "user"}
        try:
            store = open_store(path)
            rows.append({**row, "devices": store.devices(), **asdict(store.counts())})
            store.close()
        except RecordError as err:
            rows.append({**row, "devices": [], "error": str(err)})
    table = columns(
        ("device", "store", "records", "failed", "workloads", "file"),
        [
            (
                ", ".join(row["devices"]) or "–",
                row["store"],
                *(str(row.get(key, "–")) for key in ("records", "failed", "workloads")),
                row["file"],
            )
            for row in rows
        ],
    )
    empty = f"no records: neither in {str(user_folder(folder))!r} nor in the package"
    printing.emit(as_json, rows, table if rows else empty)
    for row in rows:
        if "error" in row:
            click.echo(f"warning: {row['error']}", err=True)


@db_command.command("show")
@click.argument("store")
@folder_option
@click.option("--all", "everything", is_flag=True, help="Failures too, and not the best alone.")
@options.json_option
def show_command(store: str, folder: Path | None, everything: bool, as_json: bool) -> None:
    """Show the best record of each workload of STORE."""
    opened = open_store(find_store(store, folder))
    records, damages = opened.all()
    opened.close()
    shown: Sequence[TuningRecord] = records if everything else best_lines(records, 1)
    rows = [
        (
            record.workload.operator,
            " ".join("×".join(map(str, shape)) for shape in record.workload.shapes),
            record.kind,
            f"{record.cost * 1e6:.1f}" if record.latencies else record.error,
            " ".join(f"{name}={value}" for name, value in sorted(record.config.items())),
            record.time,
        )
        for record in shown
    ]
    heads = ("operator", "shapes", "target", "µs", "configuration", "measured")
    hidden = len(records) - len(shown)
    more = f"\n{hidden} slower or failed ones are not shown (--all)" if hidden else ""
    printing.emit(as_json, [json.loads(r.to_json()) for r in shown], columns(heads, rows) + more)
    for damage in damages:
        click.echo(f"warning: {damage}", err=True)


@db_command.command("validate", short_help="Check stores; exit with 4 if one is damaged.")
@click.argument("stores", nargs=-1)
@folder_option
@options.json_option
def validate_command(stores: tuple[str, ...], folder: Path | None, as_json: bool) -> None:
    """Check STORES, by default all there are; exit with 4 if one is damaged.

    Files of networks' layouts (.layouts) are checked like those of records. Records of templates
    that have changed since are no damage: they are counted, and ignored by compilations.
    """
    from tvm_edge.schedules.conv_records import outdated

    rows: list[dict[str, Any]] = []
    known = [*known_stores(folder), *layouts_below(user_folder(folder)), *layouts_below(SHIPPED)]
    for path in [find_store(s, folder) for s in stores] or known:
        row: dict[str, Any] = {"file": str(path), "records": 0, "outdated": 0}
        records: Sequence[TuningRecord] | Sequence[LayoutRecord]
        try:
            if path.suffix == LAYOUTS:
                records, damages = read_layouts(path)
                row["problems"] = [str(damage) for damage in damages]
            else:
                store = open_store(path)
                records, _ = store.all()
                row["problems"] = [str(damage) for damage in store.damages()]
                store.close()
        except RecordError as err:
            rows.append({**row, "problems": [str(err)]})
            continue
        old = sum(bool(outdated(record)) for record in records)
        rows.append({**row, "records": len(records), "outdated": old})
    problems = [problem for row in rows for problem in row["problems"]]
    lines = [
        f"{row['file']}: {row['records']} records, {row['outdated']} of templates that have "
        f"changed, {len(row['problems'])} problems"
        for row in rows
    ]
    printing.emit(as_json, rows, "\n".join([*lines, *problems]) or "no records")
    if problems:
        sys.exit(RecordError.exit_code)
