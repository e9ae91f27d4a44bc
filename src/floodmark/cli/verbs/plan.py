"""`floodmark plan`: what a run of a step, or a refresh of a view, would do, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, steps, words
from floodmark.cli.call import Call, verb
from floodmark.cli.exits import FAILED
from floodmark.cli.tables import Column, print_table
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.lake import Lake
    from floodmark.transform.external.update import PollPlan
    from floodmark.transform.plan import TransformPlan
    from floodmark.transform.refresh.datatable import DatatablePlan
    from floodmark.transform.views.plan import ViewPlan

_KINDS = {
    "map": "map: rows as they lie in the changed slices",
    "keyed": "keyed: the rows of these keys, from every input",
    "cross": "cross: what changed on one side with all of the other",
}
_NOUNS = {"rows": "row", "groups": "group", "join": "join key", "whole": "row"}
_INPUTS = [Column("input"), Column("done up to", is_number=True), Column("head", is_number=True)]
_INPUTS += [Column("new records", is_number=True), Column("keys", is_number=True), Column("to be read")]


@verb("plan")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@steps.pipeline_option
def plan(call: Call, names: tuple[str, ...], file: str | None) -> None:
    """Show what runs of steps and refreshes of views would do, and why.

    \b
    floodmark plan features
    floodmark plan daily
    floodmark plan features --json | jq '.plans[].plan.keys'

    Per input: up to which record it is done, its newest record, how many lie between, how many keys changed in them,
    and what is read to find that out. Of a view: which records, groups or join keys would be computed, or why
    everything would be. Calls no function and writes nothing.

    Without a NAME, all steps and all views. One that waits for a dataset which is not there yet says so; one that
    cannot be planned says why, and the exit code is 1.
    """
    lake = call.lake()
    found: list[_Planned] = []
    for one in steps.chosen_with_views(lake, file, names):
        planned = _planned(one, lake)
        if names and planned.error is not None:
            raise planned.error
        found.append(planned)
        if not call.as_json:
            if len(found) > 1:
                click.echo("")
            planned.print()
    if call.as_json:
        document.emit(lake=lake.store.url, plans=[planned.fields for planned in found])
    if any(planned.is_broken for planned in found):
        click.get_current_context().exit(FAILED)


@dataclass(frozen=True)
class _Planned:
    """A step or a view with its plan; a step that knows none has none, nor has what cannot be planned."""

    one: Any
    made: Any = None
    error: FloodmarkError | None = None

    @property
    def is_broken(self) -> bool:
        """Whether something is wrong: a dataset that is not there yet may come to be when other steps have run."""
        from floodmark.ledger.errors import UnknownDataset

        return self.error is not None and not isinstance(self.error, UnknownDataset)

    @property
    def fields(self) -> dict[str, Any]:
        """The same for JSON."""
        known = {"view" if _is_view(self.one) else "step": self.one.name, "kind": type(self.one).__name__}
        if self.error is None:
            return {**known, "plan": None if self.made is None else asdict(self.made)}
        said = {"type": type(self.error).__name__, "message": self.error.message, "hint": self.error.hint}
        return {**known, **({"error": said} if self.is_broken else {"waits": self.error.message})}

    def print(self) -> None:
        """The same for people."""
        name = self.one.name
        if self.error is not None:
            click.echo(f"{name}: {'cannot be planned' if self.is_broken else 'waits'}: {self.error.message}")
        elif self.made is None:
            click.echo(f"{name}: calls its function, and writes what changed to {', '.join(self.one.output_names)}")
        else:
            _print(self.made)


def _planned(one: Any, lake: Lake) -> _Planned:
    try:
        if _is_view(one):
            return _Planned(one, one.plan_refresh())
        return _Planned(one, one.plan(lake) if hasattr(one, "plan") else None)
    except FloodmarkError as error:
        return _Planned(one, error=error)


def _is_view(one: Any) -> bool:
    from floodmark.view import View

    return isinstance(one, View)


def _print(made: Any) -> None:
    from floodmark.transform.plan import TransformPlan
    from floodmark.transform.views.plan import ViewPlan

    if isinstance(made, ViewPlan):
        _print_view(made)
    elif isinstance(made, TransformPlan):
        _print_transform(made)
    elif hasattr(made, "why"):
        _print_datatable(made)
    else:
        _print_poll(made)


def _print_transform(made: TransformPlan) -> None:
    click.echo(f"{made.step}: {_what(made)}")
    print_table(
        _INPUTS,
        [
            [one.name, _offset(one.previous), _offset(one.head), f"{one.records:,}", f"{one.keys:,}", one.reads]
            for one in made.inputs
        ],
    )
    if made.kind is not None:
        click.echo(_KINDS[made.kind])
    if made.stale is None:  # else there is nothing to look for
        click.echo(f"changelist v{made.changelist}: {_looking(made)}")
        if made.advice is not None:
            click.echo(made.advice)


def _what(made: TransformPlan) -> str:
    if made.nothing_to_do:
        return "nothing to do"
    keys = f"{words.many(made.keys, 'key')} to process"
    if made.stale is not None:
        return f"{keys}, which is everything, because {made.stale}"
    parts = {"new": made.new, "changed": made.changed, "failed before": made.failed}
    return f"{keys} ({', '.join(f'{count:,} {what}' for what, count in parts.items() if count)})"


def _looking(made: TransformPlan) -> str:
    return "only records beyond the offsets" if made.changelist == 2 else "all keys, whatever the offsets say"


def _print_datatable(made: DatatablePlan) -> None:
    click.echo(f"{made.step}: {'nothing to do' if made.why is None else f'computes everything, because {made.why}'}")
    columns = [Column("input"), Column("done up to", is_number=True), Column("head", is_number=True)]
    columns += [Column("new records", is_number=True)]
    print_table(columns, [[i.name, _offset(i.position), _offset(i.head), f"{i.behind:,}"] for i in made.inputs])


def _print_poll(made: PollPlan) -> None:
    since = "all of it" if made.start is None else f"where {made.column} is {document.jsonable(made.start)} or later"
    click.echo(f"{made.step}: {words.many(made.rows, 'row')} to read from {made.source}: {since}")


def _print_view(made: ViewPlan) -> None:
    click.echo(f"{made.view}: {_what_of(made)}")
    columns = [Column("source"), Column("done up to", is_number=True), Column("head", is_number=True)]
    columns += [Column("new records", is_number=True)]
    waiting = any(source.waiting for source in made.sources)
    columns += [Column("waiting", is_number=True)] if waiting else []
    rows = [
        [s.name, _offset(s.position), _offset(s.head), f"{s.behind:,}", *([f"{s.waiting:,}"] if waiting else [])]
        for s in made.sources
    ]
    print_table(columns, rows)
    if waiting:
        click.echo("waiting: records for which a computed column that the view reads is not computed yet")
    if made.sample:
        click.echo("")
        _print_sample(made)


def _print_sample(made: ViewPlan) -> None:
    """A few of the keys that would be computed; hidden columns by the names that they come from."""
    heads = [Column(name.removeprefix("floodmark_key_").removeprefix("floodmark_")) for name in made.sample[0]]
    print_table(heads, [[_text(value) for value in key.values()] for key in made.sample])
    if left := (made.keys or 0) - len(made.sample):
        click.echo(f"… and {words.many(left, f'more {_NOUNS[made.kind]}')}")


def _text(value: Any) -> str | None:
    return None if value is None else value if isinstance(value, str) else str(document.jsonable(value))


def _what_of(made: ViewPlan) -> str:
    if made.nothing_to_do:
        return "nothing to do"
    if made.stale is not None:
        return f"everything to be computed, because {made.stale}"
    if made.why is not None:
        return f"everything to be computed: {made.moved}, and {made.why}"
    if not made.keys:  # not known before the query is analysed again; none if there are no records, only a watermark
        return f"to be refreshed: {made.moved}"
    return f"{words.many(made.keys, _NOUNS[made.kind])} to be computed: {made.moved}"


def _offset(position: int) -> str:
    return "-" if position < 0 else str(position)
