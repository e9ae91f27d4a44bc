"""Shared by everything that is computed from datasets: the run loop, turns, positions in inputs, stored results."""
