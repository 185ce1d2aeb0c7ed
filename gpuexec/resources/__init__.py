"""What is held and who waits for whom: memory, pools, frames, fences, streams of the caller."""
