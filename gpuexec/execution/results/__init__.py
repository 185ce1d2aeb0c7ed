"""Results of runs: tensors that may be pending, and the ways to read them."""
