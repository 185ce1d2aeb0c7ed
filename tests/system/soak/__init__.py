"""Soak tests outside the suite: `make soak` looks for growth, hangs and errors after long."""
