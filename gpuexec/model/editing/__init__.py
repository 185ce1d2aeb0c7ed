"""Model editing: inputs and outputs selected or renamed, models joined, weights replaced.

An edit makes a new model; the model it comes from stays as it was.
"""
