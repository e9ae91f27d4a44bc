"""The timeline the naive way: see `histories.time_oracle`."""

from histories.time_oracle import (
    EPOCH,
    MICROSECOND,
    alive,
    all_records,
    assert_right,
    difference,
    expected,
    found,
    in_order,
    micros,
    within,
)

__all__ = [
    "EPOCH",
    "MICROSECOND",
    "alive",
    "all_records",
    "assert_right",
    "difference",
    "expected",
    "found",
    "in_order",
    "micros",
    "within",
]
