"""How large the next checkpoint should be: small at first, then as many rows as take the target duration."""

from __future__ import annotations

from collections import deque
from statistics import median

from floodmark.compute.errors import BadCheckpointSize

TARGET_SECONDS = 10.0
_REMEMBERED = 3
_GROWTH = 10
_CATCH_UP = 100  # a checkpoint was held back by the median: its growth is made up for
_INSTANT = 1e-9  # seconds; a clock can say that no time has passed


class CheckpointSizer:
    """Aims each checkpoint at the target duration, from what the last few took. It reads no clock itself.

    The rate is the median of the last three, so that one slow checkpoint changes nothing and a lasting change is
    believed at the second. The size grows at most tenfold for each checkpoint that asked for it: a rate seen on a few
    rows says little about many. It shrinks at once.
    """

    def __init__(self, minimum: int, maximum: int, target_seconds: float = TARGET_SECONDS, start: int = 1) -> None:
        _check("min_checkpoint_size", minimum)
        _check("max_checkpoint_size", maximum)
        _check_order(minimum, maximum)
        if not target_seconds > 0:
            raise ValueError(f"a checkpoint cannot aim at {target_seconds} seconds")
        self.minimum = minimum
        self.maximum = maximum
        self.target_seconds = target_seconds
        self._size = self._clamped(start)
        self._rates: deque[float] = deque(maxlen=_REMEMBERED)
        self._reach = self._size  # how far the size may grow

    @property
    def size(self) -> int:
        """How many rows the next checkpoint should have."""
        return self._size

    def record(self, rows: int, seconds: float) -> None:
        """Note how long a checkpoint of so many rows took; an empty one says nothing."""
        if rows < 1:
            return
        rate = rows / max(seconds, _INSTANT)
        self._rates.append(rate)
        asks = rate * self.target_seconds > self._size
        self._reach = min(max(self._reach, self._size) * _GROWTH, self._size * _CATCH_UP) if asks else self._size
        self._size = self._clamped(min(int(self._rate() * self.target_seconds), self._reach))

    def _rate(self) -> float:
        """Rows per second; of two the newer, for the first call of a function may have had to load its model."""
        return median(self._rates) if len(self._rates) == _REMEMBERED else self._rates[-1]

    def _clamped(self, size: int) -> int:
        return max(self.minimum, min(size, self.maximum))


def bounds(
    checkpoint_size: int | None,
    min_: int | None,
    max_: int | None,
    udf_min: int | None,
    udf_max: int | None,
    rows: int,
) -> tuple[int, int]:
    """The smallest and the largest checkpoint of a backfill of so many rows.

    `checkpoint_size`, `min_` and `max_` come from the call and win over the function's own: where the two contradict
    each other, the function's gives way. The largest is capped by `checkpoint_size`, or else by the rows there are.
    """
    given = {"checkpoint_size": checkpoint_size, "min_checkpoint_size": min_, "max_checkpoint_size": max_}
    for name, value in (*given.items(), ("min_checkpoint_size", udf_min), ("max_checkpoint_size", udf_max)):
        if value is not None:
            _check(name, value)
    _check_order(udf_min, udf_max)
    caps = [size for size in (checkpoint_size, max_) if size is not None]
    _check_order(min_, min(caps, default=None))
    if udf_max is not None and max_ is None:
        caps.append(udf_max if min_ is None else max(udf_max, min_))
    if checkpoint_size is None:
        caps.append(max(rows, 1))
    largest = min(caps)
    smallest = min_ if min_ is not None else udf_min or 1
    return min(smallest, largest), largest


def _check(name: str, size: int) -> None:
    if size < 1:
        raise BadCheckpointSize(
            f"{name} is {size}, but a checkpoint has at least one row.",
            hint="Give a number from 1 on.",
            minimum=size,
            maximum=None,
        )


def _check_order(minimum: int | None, maximum: int | None) -> None:
    if minimum is not None and maximum is not None and minimum > maximum:
        raise BadCheckpointSize(
            f"The smallest checkpoint would have {minimum} rows and the largest {maximum}.",
            hint="Lower min_checkpoint_size, or raise max_checkpoint_size or checkpoint_size.",
            minimum=minimum,
            maximum=maximum,
        )
