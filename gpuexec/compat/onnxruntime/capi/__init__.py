"""``onnxruntime.capi``: modules that code for ONNX Runtime imports names from."""
