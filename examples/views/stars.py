"""What a passenger would give: a function that a view calls for each flight."""

from __future__ import annotations

import floodmark as fm


@fm.udf(returns="int64")
def stars(delay: int) -> int:
    """Five, and one less for every ten minutes."""
    return 5 - min(4, max(0, delay) // 10)
