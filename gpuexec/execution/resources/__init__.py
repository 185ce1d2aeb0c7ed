"""Resources of runs: memory, pools, frames, fences, streams of the caller."""
