"""Import of TVM where its compiler may not be there: in half of the processor time."""

from __future__ import annotations

import sys

__all__ = ["import_tvm"]


def import_tvm() -> None:
    """Import TVM without errors for the types that its runtime library does not have.

    TVM's Python package asks for 137 of the compiler's types and catches the errors. Their
    backtraces read the symbols of all libraries: half of the processor time of the import.
    """
    if "tvm" in sys.modules:
        return
    from tvm_ffi import core, registry

    find = core._object_type_key_to_index
    known: set[str] = set()

    def find_known(key: str) -> int | None:
        if key not in known:
            known.update(registry.get_registered_type_keys())
        return find(key) if key in known else None

    core._object_type_key_to_index = find_known  # type: ignore[assignment]
    try:
        import tvm  # noqa: F401
    finally:
        core._object_type_key_to_index = find
