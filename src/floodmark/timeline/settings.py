"""Settings of a timeline: how it is cut into partitions and row groups, and when it is brought up to date."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from floodmark.chain.state import ChainState
from floodmark.ledger.layout import ROW_GROUP_SIZE_NOTE, row_group_size_of
from floodmark.ledger.strategy import noted
from floodmark.timeline.errors import BadSettings
from floodmark.timeline.order.partitions import UNITS, Unit

LateMerge = Literal["auto", "always"]
Mode = Literal["eager", "lazy"]

ROW_GROUP_SIZE = 100_000
LARGEST_ROW_GROUP_SIZE = 1 << 24
"""Whole row groups are held in memory, and with half as many rows again."""

_NOTE = "timeline"


@dataclass(frozen=True)
class Settings:
    """What a user declares of a timeline when its dataset is created."""

    partition_by: Unit
    row_group_size: int = ROW_GROUP_SIZE
    late_merge: LateMerge = "auto"  # always: as soon as rows are late, as the seed does
    mode: Mode = "eager"  # brought up to date by each write; lazy: on demand

    def __str__(self) -> str:
        return (
            f"partition_by={self.partition_by!r}, row_group_size={self.row_group_size}, "
            f"late_merge={self.late_merge!r}, timeline={self.mode!r}"
        )

    @property
    def digest(self) -> str:
        """Names what makes a layout: pieces that were laid out for another one are of no use."""
        layout = json.dumps([self.partition_by, self.row_group_size])
        return hashlib.sha256(layout.encode()).hexdigest()[:16]


def declare(
    partition_by: str | None,
    row_group_size: int | None,
    late_merge: str | None,
    timeline: str | None,
    event_time: str | None,
) -> Settings | None:
    """The timeline a user asks for, None without one; `BadSettings` when the parts do not go together."""
    if partition_by is None:
        options = {"row_group_size": row_group_size, "late_merge": late_merge, "timeline": timeline}
        for name, given in options.items():
            if given is not None:
                raise BadSettings(
                    f"{name}={given!r} without partition_by=: only a timeline has it",
                    hint=f"say what it is cut by: partition_by={UNITS[1]!r}, or one of {', '.join(UNITS)}",
                    setting=name,
                    given=given,
                )
        return None
    unit = _chosen("partition_by", partition_by, UNITS)
    if event_time is None:
        raise BadSettings(
            f"partition_by={partition_by!r} without event_time=: a timeline is in the order of event times",
            hint="name the column that says when an event happened: event_time='at'",
            setting="event_time",
            given=event_time,
        )
    return Settings(
        partition_by=unit,
        row_group_size=ROW_GROUP_SIZE if row_group_size is None else _checked_size(row_group_size),
        late_merge="auto" if late_merge is None else _chosen("late_merge", late_merge, get_args(LateMerge)),
        mode="eager" if timeline is None else _chosen("timeline", timeline, get_args(Mode)),
    )


def note(settings: Settings) -> dict[str, Any]:
    """The settings as our attachment on the chain has them."""
    own = {"partition_by": settings.partition_by, "late_merge": settings.late_merge, "mode": settings.mode}
    return {ROW_GROUP_SIZE_NOTE: settings.row_group_size, _NOTE: own}


def of(state: ChainState) -> Settings | None:
    """The settings that a chain notes; None without a timeline. What is no such note is somebody else's."""
    said, size = noted(state, _NOTE), row_group_size_of(state)
    if not isinstance(said, dict) or size is None:
        return None
    try:
        return declare(said["partition_by"], size, said["late_merge"], said["mode"], "known")
    except (KeyError, BadSettings):
        return None


def _checked_size(given: object) -> int:
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= LARGEST_ROW_GROUP_SIZE:
        return given
    raise BadSettings(
        f"row_group_size={given!r} is no number of rows from 1 to {LARGEST_ROW_GROUP_SIZE:,}",
        hint=f"leave it out for {ROW_GROUP_SIZE:,} rows",
        setting="row_group_size",
        given=given,
    )


def _chosen(setting: str, given: object, choices: Sequence[Any]) -> Any:
    if given in choices:
        return given
    near = difflib.get_close_matches(str(given), choices, 1)
    raise BadSettings(
        f"there is no {setting}={given!r}",
        hint=f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(choices)}",
        setting=setting,
        given=given,
    )
