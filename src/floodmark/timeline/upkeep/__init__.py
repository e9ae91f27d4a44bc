"""Checking a timeline, collecting its garbage, dropping what was purged."""
