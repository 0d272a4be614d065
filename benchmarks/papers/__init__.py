"""The papers' tables: what the papers print, and figures of tvm-edge beside it."""
