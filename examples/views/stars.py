"""A rating of flights: a function that a view calls for each row."""

from __future__ import annotations

import floodmark as fm


@fm.udf(returns="int64")
def stars(delay: int) -> int:
    """Five stars, minus one per ten minutes of delay."""
    return 5 - min(4, max(0, delay) // 10)
