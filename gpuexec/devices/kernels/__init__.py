"""CUDA kernel sources: search, compilation, caches, budgets, gates."""
