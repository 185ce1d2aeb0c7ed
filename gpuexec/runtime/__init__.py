"""Plan -> results: devices, recordings, kernels, staging, completion."""
