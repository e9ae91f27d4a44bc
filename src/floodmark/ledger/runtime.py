"""What a dataset needs from its surroundings: the clock, randomness, Spark and somewhere to show progress."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from floodmark.engine import Progress, Session, SilentProgress


@dataclass(frozen=True)
class Runtime:
    """Passed in from the top, so that a test can stop the clock and repeat every random choice."""

    session: Session = field(default_factory=Session)
    clock: Callable[[], int] = time.time_ns
    random_bytes: Callable[[int], bytes] = os.urandom
    sleep: Callable[[float], None] = time.sleep
    progress: Callable[[], Progress] = SilentProgress
    checkpoint_seconds: float = 10.0  # how long one checkpoint of a backfill should take
    fold_at: float | None = 0.10  # fold after a write when this part of the records is dead; None: only fold() does
