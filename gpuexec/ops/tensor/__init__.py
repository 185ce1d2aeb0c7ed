"""Shapes and movement of data: reshaping, slicing, gathering, scattering, padding."""
