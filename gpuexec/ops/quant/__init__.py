"""Quantisation: integer products, scales, narrow types."""
