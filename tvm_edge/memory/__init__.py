"""Memory of a model: its footprint, and plans that keep it to a budget.

`scratch`, `footprint` and `floor` predict the memory of a process that loads a model and runs it,
before a kernel is built; `plans` are the ways to use less; `process` measures.
"""
