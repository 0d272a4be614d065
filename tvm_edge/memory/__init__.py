"""How much memory a model takes, and how it keeps to a budget.

`scratch`, `footprint` and `floor` predict what a process takes that loads a model and runs it,
before a kernel is built; `plans` are the ways to take less; `process` measures.
"""
