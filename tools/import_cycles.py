"""Find modules of tvm_edge that import each other, also by way of others.

::

    python tools/import_cycles.py

An import counts wherever it stands: at the top of a file, in a function, or for type checkers.
Prints the imports between the modules of each cycle; exits with 1 if there are any.
"""

from __future__ import annotations

import sys

import grimp
import networkx


def find_cycles(package: str) -> list[list[tuple[str, str]]]:
    """Return the imports of each set of modules that import each other: importer, imported."""
    imports = grimp.build_graph(package, cache_dir=None)
    graph = networkx.DiGraph()
    for module in imports.modules:
        for imported in imports.find_modules_directly_imported_by(module):
            graph.add_edge(module, imported)
    components = networkx.strongly_connected_components(graph)
    return sorted(sorted(graph.subgraph(each).edges) for each in components if len(each) > 1)


def main() -> int:
    cycles = find_cycles("tvm_edge")
    for cycle in cycles:
        print("these modules import each other:")
        for importer, imported in cycle:
            print(f"    {importer} imports {imported}")
    print(f"{len(cycles) or 'no'} circular imports")
    return 1 if cycles else 0


if __name__ == "__main__":
    sys.exit(main())
