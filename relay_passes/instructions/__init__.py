"""Dataflow becomes virtual-machine instructions, recordings and stages."""
