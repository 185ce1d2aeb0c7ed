"""Weights of whole models: the accuracy cost of compression, and comparison of models by their weights."""
