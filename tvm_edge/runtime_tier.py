"""TVM, imported so that its runtime tier alone costs half of the processor time.

TVM's Python package asks its libraries for the types of both and catches an error for each of the
137 that only the compiler has. The backtraces of these errors read the symbols of all libraries.
Here the libraries are asked for the types that they have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvm_ffi import core, registry


@contextmanager
def _unknown_types_without_errors() -> Iterator[None]:
    find = getattr(core, "_object_type_key_to_index", None)
    if find is None:  # of another version of TVM
        yield
        return
    known: set[str] = set()

    def find_known(key: str) -> int | None:
        if key not in known:
            known.update(registry.get_registered_type_keys())
        return find(key) if key in known else None

    core._object_type_key_to_index = find_known  # type: ignore[assignment]
    try:
        yield
    finally:
        core._object_type_key_to_index = find


with _unknown_types_without_errors():
    import tvm  # noqa: F401
