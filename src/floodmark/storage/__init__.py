"""Bytes at rest: the Store protocol and its stores, Parquet slices and their hashes."""
