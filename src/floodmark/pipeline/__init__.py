"""Pipelines: the steps of a project by name, and finding and loading the file that declares them."""
