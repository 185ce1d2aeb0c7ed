"""Neural network layers: convolution, pooling, normalisation, attention, recurrence, losses, optimizers."""
