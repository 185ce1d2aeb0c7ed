"""Image pre- and post-processing on the device: images to tensors and back."""
