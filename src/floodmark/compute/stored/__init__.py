"""Computed columns at rest: the catalog, manifests and files of values, and their commit, reading and removal."""
