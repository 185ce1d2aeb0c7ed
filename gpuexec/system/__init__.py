"""System services: environment variables, files and memory maps, progress, pickling, plugins."""
