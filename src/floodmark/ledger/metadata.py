"""Commits without data: the watermark moves, columns are added, a purge is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from floodmark.chain.events import MetadataEvent
from floodmark.ledger.commit import Planned, plan_blocks, publish
from floodmark.ledger.errors import CommitConflict
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.snapshot import Snapshot

MAX_RACES = 50

Build = Callable[[Snapshot], Sequence[MetadataEvent]]


def commit_events(
    name: str, load: Callable[[], Snapshot], build: Build, runtime: Runtime
) -> tuple[list[Planned], Snapshot]:
    """Publish the events that `build` makes for the present head; no events, no block. A lost race plans again."""
    snapshot = load()
    with snapshot.objects.turn():
        for _ in range(MAX_RACES):
            snapshot = load()
            events = build(snapshot)
            if not events:
                snapshot.objects.confirm_head()  # what makes this unnecessary must not be lost by a crash
                return [], snapshot
            now = max(runtime.clock(), snapshot.state.system_time or 0)
            planned, state = plan_blocks(snapshot.state, events, now)
            if publish(snapshot.objects, snapshot.head, (), planned):
                return planned, snapshot.after(planned, state)
    raise CommitConflict(f"the change to {name!r} lost {MAX_RACES} races and did not happen", hint="try again")
