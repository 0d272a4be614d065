"""Passes on operators as imported: constants are folded, batch normalisation is gone."""
