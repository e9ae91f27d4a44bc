"""What a replay found: per transaction the same rows, others, or that it could not be computed again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from floodmark.provenance.comparing import Compared
from floodmark.provenance.tree import Block, Maker

Outcome = Literal["same", "differs", "not replayable"]


class NotReplayable(Exception):
    """Something that is needed to compute rows again is not there any more; says what."""


class Contradicted(Exception):
    """What a block records is not what was noted beside it; says what."""


@dataclass(frozen=True)
class Replayed:
    """A transaction of a derived dataset, or a computed column, computed again."""

    dataset: str
    outcome: Outcome
    maker: Maker
    block: Block | None  # None for a computed column, which no block is about
    column: str | None = None
    keys: int = 0
    why: str | None = None
    """What could not be had, or how computing it failed."""
    compared: Compared | None = None

    def to_json(self) -> dict[str, Any]:
        block, compared = self.block, self.compared
        return {
            "dataset": self.dataset,
            "column": self.column,
            "outcome": self.outcome,
            "block": None if block is None else {"hash": block.hash, "sequence_number": block.sequence_number},
            "transaction": None if block is None else {"start": block.start, "end": block.end},
            "made_by": vars(self.maker),
            "keys": self.keys,
            "why": self.why,
            "digest": None if compared is None else compared.stored,
            "replayed_digest": None if compared is None else compared.replayed,
            "differing": 0 if compared is None else compared.differing,
            "differences": []
            if compared is None
            else [
                {"key": one.key, "columns": one.columns, "stored": one.stored, "replayed": one.replayed}
                for one in compared.differences
            ],
        }
