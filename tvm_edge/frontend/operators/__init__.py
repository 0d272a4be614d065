"""Converters of ONNX operators, a family in each file; the table is ``frontend/converters.py``."""
