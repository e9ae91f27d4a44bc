"""Commands that remove data ask for --yes; with --dry-run they show what would go and which datasets read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from floodmark.cli import output
from floodmark.cli.command import Invocation
from floodmark.cli.exit_codes import NotConfirmed
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.lake import Lake

F = TypeVar("F", bound=Callable[..., Any])

_YES = click.option("--yes", is_flag=True, help="Confirm.")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would go and what reads it; change nothing.")


def removal_options(command: F) -> F:
    """Add the options --yes and --dry-run to a command."""
    return _YES(_DRY_RUN(command))


@dataclass(frozen=True)
class ReaderPosition:
    """A dataset that is computed from another one, and how far its chain says that it has read it; None: unknown."""

    name: str
    position: int | None


def list_readers(lake: Lake, name: str) -> list[ReaderPosition]:
    """The datasets that are computed from a dataset."""
    return [ReaderPosition(reader, _position(lake, reader, name)) for reader in lake.readers(name)]


def _position(lake: Lake, reader: str, name: str) -> int | None:
    try:
        dataset_id, state = lake[name].id, lake[reader].snapshot().state
    except FloodmarkError:  # a damaged dataset can be dropped, too
        return None
    offsets = [-1 if one.offset is None else one.offset for one in state.next_inputs if one.dataset_id == dataset_id]
    return min(offsets, default=None)


@dataclass(frozen=True)
class Removal:
    """What a command would do: `what` in words, as in "purge 3 records of trips", and `facts` for JSON."""

    what: str
    facts: Mapping[str, Any]
    readers: Sequence[ReaderPosition] = field(default=())
    before: int | None = None  # the offset before which records would go, if the command removes records

    def is_confirmed(self, call: Invocation, yes: bool, dry_run: bool) -> bool:
        """Whether to go on. With --dry-run, show what would happen and stop; without --yes, refuse."""
        if dry_run:
            self._show(call)
            return False
        if not yes:
            names = ", ".join(one.name for one in self.readers)
            also = f" ({names} {'reads' if len(self.readers) == 1 else 'read'} it)" if names else ""
            raise NotConfirmed(f"this would {self.what}{also}: add --yes to confirm, or --dry-run to see more")
        return True

    def _show(self, call: Invocation) -> None:
        if call.as_json:
            readers = [{"dataset": one.name, "position": one.position} for one in self.readers]
            output.emit(dry_run=True, **self.facts, readers=readers)
            return
        click.echo(f"would {self.what}")
        for one in self.readers:
            click.echo(f"  {one.name} {self._state(one)}")

    def _state(self, reader: ReaderPosition) -> str:
        if reader.position is None:
            return "is computed from it"
        read = "nothing of it" if reader.position < 0 else f"it up to offset {reader.position}"
        if self.before is not None and reader.position + 1 < self.before:
            return f"has read {read}: bring it up to date first, or reset it afterwards"
        return f"has read {read}"
