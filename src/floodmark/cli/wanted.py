"""What a command says a dataset is to be: made so when it is new, held against it when it is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from floodmark.cli.errors import OtherEventTime, OtherStrategy
from floodmark.ledger.errors import BadPrimaryKey

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
            )
        except BadPrimaryKey as error:  # options that do not go together; its hint speaks Python
            raise click.UsageError(f"{error.message}: see --key, --merge, --compare and --lookup.") from error

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
