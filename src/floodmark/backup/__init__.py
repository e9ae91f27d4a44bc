"""Backups of a lake, and restoring them."""
