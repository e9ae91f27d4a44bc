"""What runs of a step have done, and where it stands: the answers that users get."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from floodmark.ledger.commit import Commit


@dataclass(frozen=True)
class RunReport:
    """What a run did.

    `keys` were processed, `failed` of them with an error that is kept; for `called` of them the function was called,
    each counted once however often it was, for `reused` ones an earlier run had stored the results, and the rest are
    gone from the inputs. (Steps without transform keys count rows as keys, and as `called` the frames that came.)
    `new`, `changed` and `retracted` are rows of all outputs together. `positions` says how far each input is done
    now: the offset of its newest record up to which nothing is left to do, -1 for none.
    """

    step: str
    run: str = ""
    keys: int = 0
    failed: int = 0
    called: int = 0
    reused: int = 0
    commits: int = 0
    new: int = 0
    changed: int = 0
    retracted: int = 0
    positions: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def nothing(self) -> bool:
        """Whether there was nothing to do, so that nothing was committed."""
        return self.commits == 0


@dataclass
class Tally:
    """Adds up what a run does, over all its plans and waves."""

    run: str
    began: float  # by the monotonic clock
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def add(self, commits: Sequence[Commit]) -> None:
        """One wave was committed, to all outputs."""
        rows = {name: sum(getattr(c, name) for c in commits) for name in ("new", "changed", "retracted")}
        self.counts.update(commits=1, **rows)

    def add_keys(self, keys: int, failed: int, called: int, reused: int) -> None:
        self.counts.update(keys=keys, failed=failed, called=called, reused=reused)

    def report(self, step: str, positions: Mapping[str, int]) -> RunReport:
        return RunReport(step, self.run, positions=positions, seconds=self.seconds, **self.counts)


@dataclass(frozen=True)
class InputStatus:
    """How far a step has read an input: `position` of `head`, both offsets, with `behind` records in between."""

    name: str
    position: int
    head: int
    behind: int


@dataclass(frozen=True)
class LastRun:
    """The newest run that committed something."""

    id: str
    started: datetime
    keys: int
    failed: int
    seconds: float


@dataclass(frozen=True)
class StepStatus:
    """Where a step stands.

    `failed` keys are tried again by the next run that finds them due; `skipped` ones and those that are `exhausted`, as
    all the attempts they were allowed are used up, wait for `retry` or a change of their inputs. `stale` says why
    everything has to be computed once more, if so.
    """

    step: str
    inputs: tuple[InputStatus, ...]
    keys: int
    failed: int
    skipped: int
    exhausted: int
    version: str
    stale: str | None
    last_run: LastRun | None

    @property
    def behind(self) -> int:
        """Records of all inputs that are not processed yet."""
        return sum(one.behind for one in self.inputs)
