"""Garbage collection of a lake, and the checks of `floodmark doctor`."""
