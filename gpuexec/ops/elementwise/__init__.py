"""Elementwise operators and their fusion."""
