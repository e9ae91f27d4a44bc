"""How a backfill is to be done, as its caller said."""

from __future__ import annotations

from dataclasses import dataclass

from floodmark.compute.errors import BadCheckpointSize
from floodmark.compute.sizing import bounds
from floodmark.compute.udf import Udf
from floodmark.ledger.scan import Where


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

    def __post_init__(self) -> None:
        for name in ("task_size", "commit_granularity"):
            given = getattr(self, name)
            if given is not None and given < 1:
                raise BadCheckpointSize(f"{name} is {given}", hint="give a number from 1 on", size=given)

    def checkpoint_sizes(self, udf: Udf, rows: int) -> tuple[int, int]:
        """The smallest and the largest checkpoint, in rows; what is given here wins over the function's own."""
        given = (self.checkpoint_size, self.min_checkpoint_size, self.max_checkpoint_size)
        return bounds(*given, udf.min_checkpoint_size, udf.max_checkpoint_size, rows)
