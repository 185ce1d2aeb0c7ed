"""Tests named by rows of the feature list, and the table of rows that they make: `python -m tests.features`."""
