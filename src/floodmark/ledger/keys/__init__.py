"""The key index: which offset is the newest of a key, and which offsets are no longer current."""
