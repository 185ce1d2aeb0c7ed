"""Finding out what went wrong in a model's results: gaps by layer, and which pass or layer is to blame."""
