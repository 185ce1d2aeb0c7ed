"""What a run gives: tensors that may be pending, and the ways to read them."""
