"""Regions: neighbouring operators that run as one."""
