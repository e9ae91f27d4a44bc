"""`floodmark timeline`: rows in event-time order, or a picture of the pieces that hold them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import output as cli_output
from floodmark.cli.arguments import column_names_option
from floodmark.cli.command import Invocation, verb
from floodmark.errors import NoTimeline

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.dataset import Dataset
    from floodmark.timeline.scene import PictureSize, Scene
    from floodmark.timeline.timeline import PartitionStats


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _check_svg_name(_: click.Context, __: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and value.suffix.lower() != ".svg":
        raise click.BadParameter("the file name must end in .svg.")
    return value


@verb("timeline")
@click.argument("name")
@click.argument("start", metavar="[FROM", required=False)
@click.argument("end", metavar="TO]", required=False)
@column_names_option(
    "--columns", "Only this column; also offset, op or system_time. For several, repeat the option or use commas."
)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="At most N rows, the earliest first.")
@click.option("--pieces", is_flag=True, help="Draw the pieces of the timeline; with --json, print their statistics.")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_check_svg_name,
    help="Draw the pieces to an SVG file.",
)
def timeline(
    call: Invocation,
    name: str,
    start: str | None,
    end: str | None,
    columns: tuple[str, ...],
    limit: int | None,
    pieces: bool,
    output: Path | None,
) -> None:
    """Show rows in event-time order, or draw the pieces.

    \b
    floodmark timeline ticks 2026-11-01 2026-11-03
    floodmark timeline ticks 2026-11-01T09:30Z 2026-11-01T09:35Z --columns at,price
    floodmark timeline ticks --limit 100 --json | jq '.rows[]'
    floodmark timeline ticks --pieces
    floodmark timeline ticks 2026-11-01 2026-11-02 --output day.svg

    The range includes FROM and excludes TO. Dates are days in UTC; times need a zone, such as Z or +02:00, unless the
    event time column has none. Rows with the same time are in order of arrival. The dataset must have been created with
    --partition-by.

    In the picture a box is a piece: sorted rows of one row group. Late rows are above the pieces that they will be
    merged with. New and merged pieces are from the last update. In the partitions that it touched, it reused the other
    pieces by reference.
    """
    if (pieces or output is not None) and (columns or limit is not None):
        raise click.UsageError("--columns and --limit are for rows, not for --pieces and --output.")
    dataset = call.lake()[name]
    try:
        dataset.timeline_root()
    except NoTimeline as error:  # the hint of the error is for Python
        hint = "create another dataset: `floodmark ingest NAME FILE --event-time COLUMN --partition-by day`"
        raise NoTimeline(error.message, hint=hint, name=name) from error
    if output is not None:
        _write_svg(call, dataset, start, end, output)
    elif pieces and call.as_json:
        _emit_stats(dataset, start, end)
    elif pieces:
        _print_picture(call, dataset, start, end)
    else:
        _show_rows(call, dataset, start, end, columns, limit)


def _show_rows(
    call: Invocation, dataset: Dataset, start: str | None, end: str | None, columns: tuple[str, ...], limit: int | None
) -> None:
    from floodmark.cli import row_output

    with dataset.timeline_batches(start, end, columns=columns or None) as reader:
        if call.as_json and limit is None:
            cli_output.emit(dataset=dataset.name, more=False, rows=_row_objects(reader))
            return
        most = row_output.TERMINAL_ROWS if limit is None and sys.stdout.isatty() else limit
        table, more = _first_rows(reader, most)
    if call.as_json:
        cli_output.emit(dataset=dataset.name, more=more, rows=row_output.row_objects(table))
        return
    if table.num_rows == 0:
        call.note(f"{dataset.name}: no rows{'' if start is None and end is None else ' in this range'}")
        return
    row_output.print_rows(table)
    if more:
        call.note("… more: raise --limit, or pipe the output to see them all" if limit is None else "… more")


def _row_objects(reader: pa.RecordBatchReader) -> Iterator[dict[str, Any]]:
    """Row by row, so that memory holds one batch."""
    import pyarrow as pa

    from floodmark.cli import row_output

    for batch in reader:
        yield from row_output.row_objects(pa.Table.from_batches([batch]))


def _first_rows(reader: pa.RecordBatchReader, most: int | None) -> tuple[pa.Table, bool]:
    """The first rows, and whether there are more. Reads no batch after the limit."""
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


def _print_picture(call: Invocation, dataset: Dataset, start: str | None, end: str | None) -> None:
    from floodmark.timeline import picture

    scene, _, behind = _scene(dataset, start, end, picture.size_for(shutil.get_terminal_size().columns))
    if not scene.panels:
        call.note(f"{dataset.name}: no pieces{'' if start is None and end is None else ' in this range'}")
    else:
        _print_lines(scene)
    _note_behind(call, dataset, behind)


def _print_lines(scene: Scene) -> None:
    from floodmark.timeline import picture

    lines = picture.lines(scene, picture.marks_for(sys.stdout.encoding))
    if not sys.stdout.isatty():
        for line in lines:
            click.echo(line.plain.rstrip())
        return
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)


def _write_svg(call: Invocation, dataset: Dataset, start: str | None, end: str | None, output: Path) -> None:
    from floodmark.timeline import picture

    scene, unit, behind = _scene(dataset, start, end, picture.SIZE)
    data = picture.render(picture.draw(scene, f"{dataset.name} by {unit}")).encode()
    output.write_bytes(data)
    if call.as_json:
        cli_output.emit(dataset=dataset.name, output=str(output), size=len(data), pieces=scene.pieces)
        return
    click.echo(f"{dataset.name}: drew {cli_output.format_count(scene.pieces, 'piece')} to {output}")
    _note_behind(call, dataset, behind)


def _scene(dataset: Dataset, start: str | None, end: str | None, size: PictureSize) -> tuple[Scene, str, int]:
    """The scene to draw, the unit of the partitions, and the number of records that are not in them yet."""
    from floodmark.timeline.scene import compose

    found = dataset.timeline_pieces(start, end)
    unit = found.settings.partition_by
    scene = compose(found.partitions, unit, found.root.version, size, found.range)
    last = dataset.last_offset
    return scene, unit, max(0, (0 if last is None else last + 1) - found.root.applied)


def _note_behind(call: Invocation, dataset: Dataset, behind: int) -> None:
    if behind:
        newer = cli_output.format_count(behind, "newer record")
        call.note(f"{dataset.name}: {newer} not in the timeline files yet; reads include them")


def _emit_stats(dataset: Dataset, start: str | None, end: str | None) -> None:
    stats = dataset.timeline_stats()
    shown = {partition.start for partition in dataset.timeline_pieces(start, end).partitions}
    partitions = [_partition(partition) for partition in stats.partitions if partition.start in shown]
    last = stats.last
    cli_output.emit(
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
