"""Calibration of models for int8: ranges of activations over batches, and the scales that follow from them."""
