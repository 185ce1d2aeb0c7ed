"""Profiling of runs: time by layer and package events, summarized, printed and exported."""
