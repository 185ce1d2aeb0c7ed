"""Import and export of ONNX models, and the reference oracle; the only package that imports onnx."""

from gpuexec.importer.export import to_model
from gpuexec.importer.load import ImportedModel, load_graph
from gpuexec.importer.oracle import run_oracle

__all__ = ["ImportedModel", "load_graph", "run_oracle", "to_model"]
