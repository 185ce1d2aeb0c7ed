"""Signal processing: Fourier transforms, windows, mel weights."""
