"""Execution of a run: inputs bound, plans found, commands put on a stream, host nodes computed."""
