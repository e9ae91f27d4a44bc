"""`floodmark errors`: which keys of a step failed, and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, steps, words
from floodmark.cli.call import Call, verb
from floodmark.cli.tables import Column, print_table, visible

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.lake import Lake
    from floodmark.transform.batch_transform import BatchTransform

_KNOWN = 8
"""The columns that come after the transform keys, which may have names of theirs."""


@verb("errors")
@click.argument("name", metavar="[STEP]", required=False)
@click.option("--traceback", is_flag=True, help="Show where in the function each call failed.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many keys."
)
@steps.pipeline_option
def errors(call: Call, name: str | None, traceback: bool, limit: int, file: str | None) -> None:
    """Show the keys of a step that failed, and why.

    \b
    floodmark errors
    floodmark errors features
    floodmark errors features --traceback --limit 1
    floodmark errors features --json | jq '.errors[] | {key, message}'

    A key that failed has no rows in the output. Attempts are runs in which it failed. The state says what comes next:
    `retry` is tried again by the next run, or when it is due; `skipped` and `exhausted` wait for a change of their rows
    or for `floodmark retry`.
    """
    pipeline = steps.load_pipeline(file)
    chosen = steps.keyed_steps(pipeline) if name is None else [steps.keyed_step(pipeline[name], "errors")]
    lake = call.lake()
    found = [_Errors.of(step, lake, limit) for step in chosen]
    if call.as_json:
        described = [one.fields(traceback) for one in found]
        document.emit(lake=lake.store.url, **({"steps": described} if name is None else described[0]))
        return
    failing = [one for one in found if one.failed]
    if not failing:
        call.note(f"no key of {name} failed" if name is not None else "no key of any step failed")
    for number, one in enumerate(failing):
        if name is None:
            click.echo(f"{chr(10) if number else ''}{one.step}: {words.many(one.failed, 'key')} failed")
        one.show(traceback)


@dataclass(frozen=True)
class _Errors:
    """The keys of a step that failed: how many, and the first of them."""

    step: str
    failed: int
    first: list[dict[str, Any]]

    @classmethod
    def of(cls, step: BatchTransform, lake: Lake, limit: int) -> _Errors:
        from floodmark.ledger.errors import UnknownDataset

        try:
            table = step.errors(lake)
        except UnknownDataset:  # what it reads is not there yet, so it cannot have failed
            return cls(step.name, 0, [])
        return cls(step.name, table.num_rows, _failures(table.slice(0, limit)))

    def fields(self, traceback: bool) -> dict[str, Any]:
        """The same for JSON."""
        shown = self.first if traceback else [{k: v for k, v in one.items() if k != "traceback"} for one in self.first]
        return {"step": self.step, "failed": self.failed, "errors": shown}

    def show(self, traceback: bool) -> None:
        """The same for people."""
        if traceback:
            _print_tracebacks(self.first)
        else:
            _print_table(self.first)
        if left := self.failed - len(self.first):
            click.echo(f"… and {words.many(left, 'more key')}")


def _failures(table: pa.Table) -> list[dict[str, Any]]:
    """One failure per row, its key apart: a key column may be called `type`, too."""
    width = table.num_columns - _KNOWN
    names = table.column_names
    columns = [column.to_pylist() for column in table.columns]
    return [
        {
            "key": dict(zip(names[:width], row[:width], strict=True)),
            **dict(zip(names[width:], row[width:], strict=True)),
        }
        for row in zip(*columns, strict=True)
    ]


def _print_table(found: list[dict[str, Any]]) -> None:
    columns = [*(Column(name) for name in found[0]["key"]), Column("error"), Column("attempts", is_number=True)]
    columns += [Column("since"), Column("state")]
    print_table(columns, [[*map(_text, one["key"].values()), _error(one), *_standing(one)] for one in found])


def _standing(one: dict[str, Any]) -> list[str]:
    due = "" if one["due"] is None else f", due {words.clock(one['due'])}"
    return [f"{one['attempts']:,}", words.clock(one["since"]), f"{one['state']}{due}"]


def _print_tracebacks(found: list[dict[str, Any]]) -> None:
    for number, one in enumerate(found):
        if number:
            click.echo("")
        key = ", ".join(f"{name}={_text(value) or 'null'}" for name, value in one["key"].items())
        attempts, since, state = _standing(one)
        click.echo(
            visible(
                f"{key}: {attempts} {'attempt' if one['attempts'] == 1 else 'attempts'} failed since {since}, {state}"
            )
        )
        for line in one["traceback"].rstrip().splitlines():
            click.echo(f"  {visible(line)}")


def _error(one: dict[str, Any]) -> str:
    return f"{one['type']}: {one['message']}" if one["message"] else one["type"]


def _text(value: Any) -> str | None:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return None if value is None else value if isinstance(value, str) else str(document.jsonable(value))
