"""How a backfill is to be done, as its caller said."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from floodmark.compute.checkpoints.sizing import bounds
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
        return bounds(*given, udf.min_checkpoint_size, udf.max_checkpoint_size, rows)
