"""Reductions, cumulative sums, sorting and order statistics."""
