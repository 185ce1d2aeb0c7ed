"""Images: resizing, sampling, regions of interest, boxes."""
