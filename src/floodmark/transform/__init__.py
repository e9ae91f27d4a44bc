"""Transforms: functions of the keys that changed, with their errors kept per key and their positions on the chain."""
