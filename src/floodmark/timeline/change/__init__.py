"""Bringing a timeline up to date, and folding it: taking records in, merging, publishing."""
