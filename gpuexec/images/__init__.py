"""Images to tensors and back, on the device: what pre- and post-processing of a vision model take."""
