"""`floodmark verify`: check datasets against their hashes, and derived ones against what made them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, steps, words
from floodmark.cli.call import Call, verb
from floodmark.cli.exits import PROBLEMS
from floodmark.cli.tables import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from floodmark.compute.functions.udf import Udf
    from floodmark.ledger.verify import Verification
    from floodmark.provenance.replayed import Replayed
    from floodmark.transform.step import Step

_SHOWN = 3  # differences of a transaction that are printed


@verb("verify")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--replay", is_flag=True, help="Also compute derived data again, and compare.")
@steps.pipeline_option
def verify(call: Call, names: tuple[str, ...], replay: bool, file: str | None) -> None:
    """Check datasets against their hashes.

    \b
    floodmark verify
    floodmark verify trips --json | jq '.datasets[].problems'
    floodmark verify features --replay

    Every block is checked against the rules of the chain, every file against its hashes, and a key index against the
    records; without a NAME, those of all datasets. The exit code is 3 when something is wrong.

    With --replay, every transaction of a step or view is computed again too, and every computed column: from the inputs
    as they were then, with the columns and the code that were in force. Steps are those of the pipeline, if there is
    one. What differs is shown by key. What cannot be computed again (its code is gone, its inputs are purged) is said
    to be not replayable; the exit code is 3 then, too.
    """
    lake = call.lake()
    datasets = [lake[name] for name in names] if names else lake.datasets()
    found: list[Verification] = []
    for dataset in datasets:
        result = dataset.verify()
        found.append(result)
        if not call.as_json:
            _print(result)
    replayed: list[Replayed] = []
    if replay:
        from floodmark.provenance.replay import replay as compute_again

        for one in compute_again(lake, [dataset.name for dataset in datasets], *_code(file)):
            replayed.append(one)
            if not call.as_json:
                _print_replayed(one)
    ok = all(result.ok for result in found) and all(one.outcome == "same" for one in replayed)
    if call.as_json:
        more = {"replayed": [one.to_json() for one in replayed]} if replay else {}
        document.emit(lake=lake.store.url, ok=ok, datasets=[_fields(result) for result in found], **more)
    if not found:
        call.note(f"no datasets in {lake.store.url} yet")
    if not ok:
        click.get_current_context().exit(PROBLEMS)


def _code(file: str | None) -> tuple[Sequence[Step], Sequence[Udf]]:
    """The steps of the pipeline and the functions of its columns; none where there is no pipeline."""
    from floodmark.pipeline.errors import NoPipeline

    try:
        pipeline = steps.load_pipeline(file)
    except NoPipeline:
        if file is not None:
            raise
        return (), ()
    return list(pipeline), [column.udf for column in pipeline.columns.values()]


def _print_replayed(one: Replayed) -> None:
    where = f"column {one.column}" if one.block is None else f"block {one.block.sequence_number}"
    line = f"{one.dataset} {where}: {one.outcome}"
    if one.outcome == "same":
        click.echo(f"{line} ({words.many(one.keys, 'row' if one.block is None else 'key')} computed again)")
        return
    differing = 0 if one.compared is None else one.compared.differing
    click.echo(line + (f", {visible(one.why)}" if one.why else f" in {words.many(differing, 'row')}"))
    for difference in () if one.compared is None else one.compared.differences[:_SHOWN]:
        key = ", ".join(f"{name}={value}" for name, value in difference.key.items())
        if difference.stored is None:
            said = f"is not there, and should be {dict(difference.replayed or {})}"
        elif difference.replayed is None:
            said = "is there, and should not be"
        else:
            stored, again = difference.stored, difference.replayed
            said = ", ".join(f"{name} is {stored[name]}, should be {again[name]}" for name in difference.columns)
        click.echo(visible(f"  {key}: {said}"))


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
