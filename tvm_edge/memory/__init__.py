"""Memory of a model: its footprint, and plans that keep it to a budget.

`scratch`, `footprint` and `floor` predict what a process takes that loads a model and runs it,
before a kernel is built; `plans` are the ways to take less; `process` measures.
"""
