"""A run under way: inputs bound, plans found, commands put on a stream, the host doing its part."""
