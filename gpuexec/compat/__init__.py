"""Interfaces of other systems over gpuexec: ONNX's backend, ExecuTorch and ONNX Runtime."""
