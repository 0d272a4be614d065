"""Optimisation problems that passes pose; no IR is rewritten here."""
