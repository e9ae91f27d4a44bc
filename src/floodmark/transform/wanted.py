"""What a run is asked to process: what changed, the keys that somebody names, or those that failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from floodmark.transform.errors import BadStep, NewVersion

if TYPE_CHECKING:
    from floodmark.transform.pinned import PinnedStep


@dataclass(frozen=True)
class Changed:
    """The keys that changed and those that are to be tried again: all, or what filters and a limit leave of them."""

    filters: Any = None
    max_records: int | None = None
    commit_every: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_records", "commit_every"):
            given = getattr(self, name)
            if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
                raise BadStep(f"{name}={given!r} is no count", hint="give a whole number from 1 on")

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out."""
        return self.filters is None and self.max_records is None


@dataclass(frozen=True)
class Asked:
    """The keys of these rows, by the name of an input, whether they changed or not."""

    keys: Mapping[str, Any]

    @property
    def is_whole(self) -> bool:
        return False


@dataclass(frozen=True)
class Failed:
    """The keys whose last call failed, all of them."""

    @property
    def is_whole(self) -> bool:
        return False


Wanted = Changed | Asked | Failed


def check_wanted(wanted: Wanted, pinned: PinnedStep) -> None:
    """Refuse part of the keys while all of them are stale: readers must not see results of two functions together."""
    if not wanted.is_whole and pinned.stale is not None:
        raise NewVersion(
            f"step {pinned.step.name!r} has to process everything once, because {pinned.stale}",
            hint="run it without filters or limits first; until that is committed, readers keep the old results",
            step=pinned.step.name,
        )
