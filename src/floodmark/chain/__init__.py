"""The metadata chain: hashes, ids, events, codec, rules, head and skip pointers. Pure Python."""
