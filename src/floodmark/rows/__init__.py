"""The current rows of a dataset: merge by key, key index, lookups, fold, purge."""
