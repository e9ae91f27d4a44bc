"""The metadata chain of a dataset: hashes, ids, events, their bytes, and the rules. Pure Python, no I/O."""
