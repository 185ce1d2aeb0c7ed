"""Modules that code for ONNX Runtime imports names from."""
