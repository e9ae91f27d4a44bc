"""What a refresh of a view has done: the answer that users get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from floodmark.transform.views.analysed.analysis import Kind


@dataclass(frozen=True)
class Refreshed:
    """What a refresh did.

    `records` of the sources were new since the last one, and changed `keys` of the view: source rows, groups or join
    keys, each with all its rows. Where everything was derived, `stale` says why it was this time, or `why` why it
    always is; only what differs is written even so. `new`, `changed` and `retracted` are rows of the view. Functions
    were `called` for so many rows, `reused` results lay in checkpoints, and `failed` rows have an error and no value.
    `waiting` records are left for later: a computed column that the view reads is not there for them yet.
    `positions` says how far each source is done. A view whose key or types changed was made anew: `kept_as` is the
    dataset that has its old rows and their history now.
    """

    view: str
    kind: Kind
    why: str | None = None
    stale: str | None = None
    records: int = 0
    keys: int = 0
    new: int = 0
    changed: int = 0
    retracted: int = 0
    called: int = 0
    reused: int = 0
    failed: int = 0
    waiting: int = 0
    commits: int = 0
    positions: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    kept_as: str | None = None

    @property
    def nothing(self) -> bool:
        """Whether there was nothing to do, so that nothing was committed."""
        return self.commits == 0

    @property
    def is_whole(self) -> bool:
        """Whether everything was derived."""
        return not self.nothing and (self.stale is not None or self.why is not None)
