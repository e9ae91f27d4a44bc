"""`floodmark list`: the datasets of a lake."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, words
from floodmark.cli.call import Call, verb
from floodmark.cli.exits import FAILED
from floodmark.cli.tables import Column, Row, print_table
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.dataset import Dataset


@dataclass(frozen=True)
class Listed:
    """A dataset as `list` shows it."""

    name: str
    id: str
    kind: str
    view: bool
    merge: str
    key: tuple[str, ...]
    records: int
    size: int
    last_offset: int | None
    last_write: datetime | None
    watermark: datetime | None
    head: str

    @classmethod
    def of(cls, dataset: Dataset) -> Listed:
        from floodmark.ledger import names
        from floodmark.ledger.commit import to_datetime
        from floodmark.ledger.strategy import strategy_of
        from floodmark.transform.views.defined.stored import is_view

        snapshot = dataset.snapshot()
        state = snapshot.state
        strategy = strategy_of(state)
        written = snapshot.head_block.system_time if state.last_offset is not None else None
        return cls(
            name=dataset.name,
            id=dataset.id.text,
            kind=dataset.kind.name.lower(),
            view=is_view(state) and names.find(snapshot.objects.store, dataset.name).rows_of is None,
            merge=strategy.kind,
            key=strategy.key,
            records=snapshot.records,
            size=snapshot.size,
            last_offset=state.last_offset,
            last_write=None if written is None else to_datetime(written),
            watermark=dataset.watermark,
            head=snapshot.head.text,
        )

    def row(self, now: datetime) -> Row:
        written = "never" if self.last_write is None else words.ago(self.last_write, now)
        watermark = "-" if self.watermark is None else words.clock(self.watermark)
        return [self.name, self._merged(), f"{self.records:,}", words.size(self.size), written, watermark]

    def _merged(self) -> str:
        if self.view:
            return "view"
        if self.kind != "root":
            return self.kind  # takes no data from outside, so nothing is merged
        return f"{self.merge} by {', '.join(self.key)}" if self.key else self.merge


_COLUMNS = [
    Column("name"),
    Column("merge"),
    Column("records", is_number=True),
    Column("size", is_number=True),
    Column("last write"),
    Column("watermark"),
]


@verb("list")
def list_datasets(call: Call) -> None:
    """Show all datasets: what they hold, when last written.

    \b
    floodmark list
    floodmark list --json | jq '.datasets[].name'

    A dataset that cannot be read is named on stderr (with --json it has an `error`), and the exit code is 1.
    """
    lake = call.lake()
    listed: list[Listed] = []
    damaged: dict[str, FloodmarkError] = {}
    for dataset in lake:
        try:
            listed.append(Listed.of(dataset))
        except FloodmarkError as error:
            damaged[dataset.name] = error
    if call.as_json:
        broken: list[dict[str, Any]] = [
            {"name": name, "error": {"type": type(e).__name__, "message": e.message, "hint": e.hint}}
            for name, e in damaged.items()
        ]
        document.emit(lake=lake.store.url, datasets=[*(vars(one) for one in listed), *broken])
    elif listed:
        now = datetime.now(UTC)
        print_table(_COLUMNS, [one.row(now) for one in listed])
    elif not damaged:
        call.note(f"no datasets in {lake.store.url} yet: `floodmark ingest NAME PATH` makes one")
    for name, why in damaged.items():
        call.note(f"error: {name} cannot be read: {why.message}\n  `floodmark verify {name}` says more")
    if damaged:
        click.get_current_context().exit(FAILED)
