"""What compressing the weights of a model costs in accuracy."""
