"""Execution of models: the Worker, its runs, their memory, results, state, replay and inspection."""
