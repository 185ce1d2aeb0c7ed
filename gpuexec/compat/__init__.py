"""Interfaces of other systems over gpuexec: ONNX's backend, ExecuTorch, ONNX Runtime, Ray."""
