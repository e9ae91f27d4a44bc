"""Merge strategies: what a batch becomes in a dataset whose records have keys."""
