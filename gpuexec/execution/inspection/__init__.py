"""Inspection of computed values: statistics of tensors, and gaps between two of them."""
