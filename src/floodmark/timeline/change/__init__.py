"""Bringing a timeline up to date, folding it, and dropping what was purged: taking records in, merging, publishing."""
