"""What a command says a dataset is to be: made so when it is new, held against it when it is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from floodmark.cli.errors import OtherEventTime, OtherStrategy, OtherTimeline
from floodmark.ledger.errors import BadPrimaryKey
from floodmark.timeline.errors import BadSettings

if TYPE_CHECKING:
    from floodmark.dataset import Dataset
    from floodmark.lake import Lake
    from floodmark.ledger.strategy import Strategy


@dataclass(frozen=True)
class Wanted:
    """What the dataset is to be, as far as the command says; an empty tuple says nothing."""

    event_time: str | None
    merge: str | None
    key: tuple[str, ...]
    compare: tuple[str, ...]
    lookup: tuple[str, ...]
    partition_by: str | None = None
    row_group_size: int | None = None
    late_merge: str | None = None
    timeline: str | None = None

    def create(self, lake: Lake, name: str) -> Dataset:
        """A new dataset that is so."""
        try:
            return lake.create(
                name,
                event_time=self.event_time,
                key=self.key or None,
                merge=self.merge,
                compare=self.compare or None,
                lookup=self.lookup or None,
                partition_by=self.partition_by,
                row_group_size=self.row_group_size,
                late_merge=self.late_merge,
                timeline=self.timeline,
            )
        except BadPrimaryKey as error:  # options that do not go together; its hint speaks Python
            raise click.UsageError(f"{error.message}: see --key, --merge, --compare and --lookup.") from error
        except BadSettings as error:
            raise click.UsageError(_SETTINGS.get(error.setting, error.message)) from error

    def check(self, dataset: Dataset) -> None:
        """Refuse a dataset that is otherwise: what it is was settled when it was made."""
        if self.event_time is not None and dataset.event_time != self.event_time:
            has = f"the event time {dataset.event_time!r}" if dataset.event_time else "no event time of its own"
            raise OtherEventTime(
                f"dataset {dataset.name!r} has {has}, not {self.event_time!r}",
                hint="leave out --event-time to append, or choose another name for a new dataset",
                name=dataset.name,
            )
        found = dataset.strategy
        options = [
            ("--merge", self.merge, found.kind),
            ("--key", self.key, found.key),
            ("--compare", self.compare, found.compare or ()),
            ("--lookup", self.lookup, found.lookup),
        ]
        for option, wanted, present in options:
            if wanted and wanted != present:
                raise OtherStrategy(
                    f"dataset {dataset.name!r} was made with {_as_options(found)}, not {option} {_listed(wanted)}",
                    hint=f"leave out {option} to write to it as it is, or choose another name for a new dataset",
                    name=dataset.name,
                )
        self._check_timeline(dataset)

    def _check_timeline(self, dataset: Dataset) -> None:
        from floodmark.timeline import settings

        found = settings.of(dataset.snapshot().state)
        options = [
            ("--partition-by", self.partition_by, found and found.partition_by),
            ("--row-group-size", self.row_group_size, found and found.row_group_size),
            ("--late-merge", self.late_merge, found and found.late_merge),
            ("--timeline", self.timeline, found and found.mode),
        ]
        for option, wanted, present in options:
            if wanted is not None and wanted != present:
                has = "no timeline" if found is None else f"a timeline with {option} {present}"
                raise OtherTimeline(
                    f"dataset {dataset.name!r} has {has}, not {option} {wanted}",
                    hint=f"leave out {option} to write to it as it is, or choose another name for a new dataset",
                    name=dataset.name,
                )


_NEEDS_UNIT = "--row-group-size, --late-merge and --timeline are for a timeline: say --partition-by too, such as day."
_SETTINGS = {
    "event_time": "--partition-by needs --event-time: a timeline is in the order of event times.",
    **dict.fromkeys(("row_group_size", "late_merge", "timeline"), _NEEDS_UNIT),
}
"""What is wrong with options that do not go together; the choices are checked already, so nothing else can be."""


def _as_options(strategy: Strategy) -> str:
    """A strategy as the options that ask for it."""
    given = [f"--merge {strategy.kind}"]
    if strategy.key:
        given.append(f"--key {_listed(strategy.key)}")
    if strategy.compare is not None:
        given.append(f"--compare {_listed(strategy.compare)}")
    if strategy.lookup != strategy.key:
        given.append(f"--lookup {_listed(strategy.lookup)}")
    return " ".join(given)


def _listed(wanted: str | tuple[str, ...]) -> str:
    return wanted if isinstance(wanted, str) else ",".join(wanted)
