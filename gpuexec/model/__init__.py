"""Models: loading, ports, state, editing, and tracing of array programs."""
