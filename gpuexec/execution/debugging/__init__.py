"""Diagnosis of wrong results: numeric gap by layer, and the pass or layer at fault."""
