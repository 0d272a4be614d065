"""Tuning records: their schema, their stores, and the lookup for a compilation."""

from tvm_edge.records.database import Database
from tvm_edge.records.folders import DATABASE, LINES, SHIPPED, store_of, stores_below, user_folder
from tvm_edge.records.json_lines import Damage, LinesFile, best_lines, write_lines
from tvm_edge.records.layout_record import (
    LAYOUTS,
    LayoutRecord,
    LayoutTransform,
    find_layouts,
    layouts_below,
    read_layouts,
    update_layouts,
)
from tvm_edge.records.lookup import Found, RecordLibrary
from tvm_edge.records.record_device import RecordDevice
from tvm_edge.records.sqlite_errors import DamagedDatabase
from tvm_edge.records.stores import (
    Added,
    add_records,
    make_room,
    open_store,
    prepare_store,
)
from tvm_edge.records.totals import Counts, Pruned
from tvm_edge.records.tuning_record import SCHEMA_VERSION, TuningRecord, Value, Workload, timestamp

__all__ = [
    "DATABASE",
    "LAYOUTS",
    "LINES",
    "SCHEMA_VERSION",
    "SHIPPED",
    "Added",
    "Counts",
    "Damage",
    "DamagedDatabase",
    "Database",
    "Found",
    "LayoutRecord",
    "LayoutTransform",
    "LinesFile",
    "Pruned",
    "RecordDevice",
    "RecordLibrary",
    "TuningRecord",
    "Value",
    "Workload",
    "add_records",
    "best_lines",
    "find_layouts",
    "layouts_below",
    "make_room",
    "open_store",
    "prepare_store",
    "read_layouts",
    "store_of",
    "stores_below",
    "timestamp",
    "update_layouts",
    "user_folder",
    "write_lines",
]
