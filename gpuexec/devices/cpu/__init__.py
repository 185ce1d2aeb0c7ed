"""CPU device: host calls in NumPy on a stream that is a thread."""
