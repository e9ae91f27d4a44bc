"""How a backfill is to be done, as its caller said."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from floodmark.compute.errors import BadCheckpointSize
from floodmark.compute.functions.udf import Udf
from floodmark.ledger.scan import Where

_SIZES = ("checkpoint_size", "min_checkpoint_size", "max_checkpoint_size", "task_size", "commit_granularity")


@dataclass(frozen=True)
class Options:
    """How a backfill is to be done; None leaves it to the function, or to what is measured."""

    where: Where = None
    checkpoint_size: int | None = None
    min_checkpoint_size: int | None = None
    max_checkpoint_size: int | None = None
    task_size: int | None = None
    commit_granularity: int = 64
    retry_errors: bool = False
    target_seconds: float = 10.0
    run: str = field(default_factory=lambda: uuid.uuid4().hex)  # names this backfill

    def __post_init__(self) -> None:
        for name in _SIZES:
            given = getattr(self, name)
            if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
                raise BadCheckpointSize(f"{name} is {given!r}", hint="give a whole number from 1 on", size=given)

    def checkpoint_sizes(self, udf: Udf, rows: int) -> tuple[int, int]:
        """The smallest and the largest checkpoint, in rows; what is given here wins over the function's own."""
        given = (self.checkpoint_size, self.min_checkpoint_size, self.max_checkpoint_size)
        return checkpoint_bounds(*given, udf.min_checkpoint_size, udf.max_checkpoint_size, rows)


def checkpoint_bounds(
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
