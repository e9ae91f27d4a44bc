"""Transforms the naive way: see `histories.step_oracle`."""

from histories.step_oracle import assert_right, content, expected, heads, input_rows, shown, universe

__all__ = ["assert_right", "content", "expected", "heads", "input_rows", "shown", "universe"]
