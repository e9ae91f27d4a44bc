"""`floodmark verify`: check datasets against their hashes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, words
from floodmark.cli.call import Call, verb
from floodmark.cli.exits import PROBLEMS
from floodmark.cli.tables import visible

if TYPE_CHECKING:
    from floodmark.ledger.verify import Verification


@verb("verify")
@click.argument("names", metavar="[NAME]...", nargs=-1)
def verify(call: Call, names: tuple[str, ...]) -> None:
    """Check datasets against their hashes.

    \b
    floodmark verify
    floodmark verify trips --json | jq '.datasets[].problems'

    Every block is checked against the rules of the chain, every file against its hashes, and a key index against the
    records; without a NAME, those of all datasets. The exit code is 3 when something is wrong.
    """
    lake = call.lake()
    datasets = [lake[name] for name in names] if names else lake.datasets()
    found: list[Verification] = []
    for dataset in datasets:
        result = dataset.verify()
        found.append(result)
        if not call.as_json:
            _print(result)
    ok = all(result.ok for result in found)
    if call.as_json:
        document.emit(lake=lake.store.url, ok=ok, datasets=[_fields(result) for result in found])
    if not found:
        call.note(f"no datasets in {lake.store.url} yet")
    if not ok:
        click.get_current_context().exit(PROBLEMS)


def _print(result: Verification) -> None:
    if result.ok:
        parts = [words.many(result.blocks, "block"), words.many(result.slices, "slice")]
        if result.checkpoints:
            parts.append(words.many(result.checkpoints, "checkpoint"))
        parts.append(words.size(result.bytes))
        if result.purged_slices:
            parts.append(f"{words.many(result.purged_slices, 'slice')} purged")
        click.echo(f"{result.name}: ok ({', '.join(parts)})")
        return
    click.echo(f"{result.name}: {words.many(len(result.problems), 'problem')}")
    for problem in result.problems:
        click.echo(f"  {problem.kind} {problem.object}: {visible(problem.message.strip())}")


def _fields(result: Verification) -> dict[str, Any]:
    return {"ok": result.ok, **asdict(result)}
