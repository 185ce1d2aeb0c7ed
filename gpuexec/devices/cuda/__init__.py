"""CUDA device: CuPy streams, events, graphs and launches."""
