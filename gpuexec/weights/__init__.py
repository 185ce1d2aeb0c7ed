"""Weights of models as a whole: what compressing them costs in accuracy, and models that differ in them alone."""
