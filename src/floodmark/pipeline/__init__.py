"""Pipelines: declarations of datasets, sources, steps, columns and views, and running them in order."""
