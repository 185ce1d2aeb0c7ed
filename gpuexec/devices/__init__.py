"""The runtime: devices, recordings, kernels, staging and completion, which execute plans."""
