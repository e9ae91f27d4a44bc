"""Datasets: schema, append, slice index, reading by offset, verify."""
