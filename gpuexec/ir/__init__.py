"""Intermediate representation: specs, graphs, operators, commands and plans, which every other room reads."""
