"""ONNX bytes -> Graph, and Graph -> ONNX; the reference oracle. The only room that knows the onnx package."""

from gpuexec.importer.export import to_model
from gpuexec.importer.load import ImportedModel, load_graph
from gpuexec.importer.oracle import run_oracle

__all__ = ["ImportedModel", "load_graph", "run_oracle", "to_model"]
