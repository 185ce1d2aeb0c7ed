"""Numbers about what runs compute: statistics of tensors, and how far apart two of them are."""
