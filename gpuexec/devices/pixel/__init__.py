"""Texture memory: extents, texel coordinates and addresses, for a GPU and for the simulator."""
