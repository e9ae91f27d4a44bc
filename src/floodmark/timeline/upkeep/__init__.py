"""Checking a timeline, and collecting its garbage."""
