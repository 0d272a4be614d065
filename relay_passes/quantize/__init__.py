"""Passes on quantised tensors: integer arithmetic between DEQUANTIZE and QUANTIZE."""
