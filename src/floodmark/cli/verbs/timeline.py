"""`floodmark timeline`: rows in event-time order, or the pieces they lie in."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, words
from floodmark.cli.call import Call, verb
from floodmark.cli.columns import named_columns
from floodmark.timeline.errors import NoTimeline

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.dataset import Dataset
    from floodmark.timeline.picture.scene import Scene, Size
    from floodmark.timeline.timeline import PartitionStats

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _picture(_: click.Context, __: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and value.suffix.lower() != ".svg":
        raise click.BadParameter("the name of a picture ends in .svg.")
    return value


@verb("timeline")
@click.argument("name")
@click.argument("start", metavar="[FROM", required=False)
@click.argument("end", metavar="TO]", required=False)
@click.option(
    "--columns",
    metavar="COLUMN",
    multiple=True,
    callback=named_columns,
    help="Only this column. Several: again, or with commas; offset, op and system_time too.",
)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="At most N rows, the earliest of them.")
@click.option("--pieces", is_flag=True, help="Draw the pieces that the rows lie in; with --json, what they come to.")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_picture,
    help="Draw the pieces into an SVG file.",
)
def timeline(
    call: Call,
    name: str,
    start: str | None,
    end: str | None,
    columns: tuple[str, ...],
    limit: int | None,
    pieces: bool,
    output: Path | None,
) -> None:
    """Show rows in event-time order, or the pieces they lie in.

    \b
    floodmark timeline ticks 2026-11-01 2026-11-03
    floodmark timeline ticks 2026-11-01T09:30 2026-11-01T09:35 --columns at,price
    floodmark timeline ticks --limit 100 --json | jq '.rows[]'
    floodmark timeline ticks --pieces
    floodmark timeline ticks 2026-11-01 2026-11-02 --output day.svg

    FROM is part of the range, TO is not; without a zone they are UTC. Rows of the same time come as they arrived. The
    dataset must have been made with --partition-by.

    In the picture a box is a piece: rows of one row group that lie in order. Late rows lie above the pieces that they
    will be merged with. New and merged pieces are those of the last update; the other pieces of the partitions that it
    touched are where they were, by reference.
    """
    if (pieces or output is not None) and (columns or limit is not None):
        raise click.UsageError("--columns and --limit are for rows, not for --pieces and --output.")
    dataset = call.lake()[name]
    try:
        dataset.timeline_root()
    except NoTimeline as error:  # its hint speaks Python
        hint = "make one with `floodmark ingest NAME FILE --event-time COLUMN --partition-by day`"
        raise NoTimeline(error.message, hint=hint, name=name) from error
    if output is not None:
        _write(call, dataset, start, end, output)
    elif pieces and call.as_json:
        _emit_stats(dataset, start, end)
    elif pieces:
        _draw(call, dataset, start, end)
    else:
        _show_rows(call, dataset, start, end, columns, limit)


def _show_rows(
    call: Call, dataset: Dataset, start: str | None, end: str | None, columns: tuple[str, ...], limit: int | None
) -> None:
    from floodmark.cli import records

    with dataset.timeline_batches(start, end, columns=columns or None) as reader:
        if call.as_json and limit is None:
            document.emit(dataset=dataset.name, more=False, rows=_objects(reader))
            return
        most = records.TERMINAL_ROWS if limit is None and sys.stdout.isatty() else limit
        table, more = _earliest(reader, most)
    if call.as_json:
        document.emit(dataset=dataset.name, more=more, rows=records.objects(table))
        return
    if table.num_rows == 0:
        call.note(f"{dataset.name}: no rows{'' if start is None and end is None else ' in this range'}")
        return
    records.show_all(table)
    if more:
        call.note("… more: raise --limit, or pipe the output to see them all" if limit is None else "… more")


def _objects(reader: pa.RecordBatchReader) -> Iterator[dict[str, Any]]:
    """Row by row, however many there are."""
    import pyarrow as pa

    from floodmark.cli import records

    for batch in reader:
        yield from records.objects(pa.Table.from_batches([batch]))


def _earliest(reader: pa.RecordBatchReader, most: int | None) -> tuple[pa.Table, bool]:
    """At most so many rows, and whether there are more; nothing is read beyond them."""
    import pyarrow as pa

    if most is None:
        return reader.read_all(), False
    batches: list[pa.RecordBatch] = []
    missing = most
    for batch in reader:
        if batch.num_rows > missing:
            batches.append(batch.slice(0, missing))
            return pa.Table.from_batches(batches, reader.schema), True
        batches.append(batch)
        missing -= batch.num_rows
    return pa.Table.from_batches(batches, reader.schema), False


def _draw(call: Call, dataset: Dataset, start: str | None, end: str | None) -> None:
    from floodmark.timeline.picture import text

    scene, _, behind = _scene(dataset, start, end, text.size_for(shutil.get_terminal_size().columns))
    if not scene.panels:
        call.note(f"{dataset.name}: no pieces{'' if start is None and end is None else ' in this range'}")
    else:
        _print_lines(scene)
    _note_behind(call, dataset, behind)


def _print_lines(scene: Scene) -> None:
    from floodmark.timeline.picture import text

    lines = text.lines(scene, text.marks_for(sys.stdout.encoding))
    if not sys.stdout.isatty():
        for line in lines:
            click.echo(line.plain.rstrip())
        return
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)


def _write(call: Call, dataset: Dataset, start: str | None, end: str | None, output: Path) -> None:
    from floodmark.timeline.picture import drawing, svg

    scene, unit, behind = _scene(dataset, start, end, drawing.SIZE)
    data = svg.render(drawing.draw(scene, f"{dataset.name} by {unit}")).encode()
    output.write_bytes(data)
    if call.as_json:
        document.emit(dataset=dataset.name, output=str(output), size=len(data), pieces=scene.pieces)
        return
    click.echo(f"{dataset.name}: drew {words.many(scene.pieces, 'piece')} into {output}")
    _note_behind(call, dataset, behind)


def _scene(dataset: Dataset, start: str | None, end: str | None, size: Size) -> tuple[Scene, str, int]:
    """What there is to be drawn, the unit of the partitions, and how many records are not in them yet."""
    from floodmark.timeline.order.ranges import parse_range
    from floodmark.timeline.picture.scene import compose

    found = dataset.timeline_pieces(start, end)
    unit = found.settings.partition_by
    scene = compose(found.partitions, unit, found.root.version, size, parse_range(start, end))
    last = dataset.last_offset
    return scene, unit, max(0, (0 if last is None else last + 1) - found.root.applied)


def _note_behind(call: Call, dataset: Dataset, behind: int) -> None:
    if behind:
        newer = words.many(behind, "newer record")
        call.note(f"{dataset.name}: without {newer}, not put in order yet; reads have them")


def _emit_stats(dataset: Dataset, start: str | None, end: str | None) -> None:
    stats = dataset.timeline_stats()
    shown = {partition.start for partition in dataset.timeline_pieces(start, end).partitions}
    partitions = [_partition(partition) for partition in stats.partitions if partition.start in shown]
    last = stats.last
    document.emit(
        dataset=dataset.name,
        applied=stats.applied,
        behind=stats.behind,
        bytes_in=stats.bytes_in,
        bytes_written=stats.bytes_written,
        amplification=stats.amplification,
        last=None if last is None else {**asdict(last), "amplification": last.amplification},
        partitions=partitions,
    )


def _partition(stats: PartitionStats) -> dict[str, Any]:
    start = _EPOCH + timedelta(microseconds=stats.start)
    return {**asdict(stats), "start": start, "amplification": stats.amplification}
