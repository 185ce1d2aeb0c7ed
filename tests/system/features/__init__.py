"""Feature tests, named by rows of the feature list, and the table of rows: `python -m tests.system.features`."""
