"""A spool: frames on disk as they came, until all are there and it is known what columns they have together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.ledger.conform import cast_column, fits
from floodmark.storage.scratch import explained
from floodmark.transform.errors import DifferingFrames

_BATCH_ROWS = 1 << 16


@dataclass
class Spool:
    """The rows for one output. Memory holds one frame at a time; the folder is whoever made it's to remove.

    Frames without rows are left out, as their columns often have no types.
    """

    folder: Path
    output: str
    rows: int = 0
    _files: list[tuple[Path, pa.Schema]] = field(default_factory=list)
    _writer: Any = None
    _frames: int = 0

    def add(self, table: pa.Table) -> None:
        """Keep a frame; it has the columns of those before it, in any order."""
        self._frames += 1
        if table.num_rows == 0:
            return
        if self._files:
            self._check_names(table.column_names)
            table = table.select(self._files[0][1].names)
        with explained("rows on their way", self.folder):
            if self._writer is None or self._files[-1][1] != table.schema:
                self.close()
                path = self.folder / f"spool-{id(self):x}-{len(self._files):06d}"
                self._writer = pa.ipc.new_stream(str(path), table.schema)
                self._files.append((path, table.schema))
            self._writer.write_table(table, max_chunksize=_BATCH_ROWS)
        self.rows += table.num_rows

    def reader(self, known: pa.Schema | None) -> pa.RecordBatchReader:
        """All rows in the order they came, cast to the output's types where it has them, else to those they share."""
        self.close()
        schema = self._schema(known)
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema))

    def _schema(self, known: pa.Schema | None) -> pa.Schema:
        shared = []
        for name in self._files[0][1].names:
            types = list(dict.fromkeys(schema.field(name).type for _, schema in self._files))
            target = known.field(name).type if known is not None and name in known.names else None
            if target is None or not all(fits(one, target) for one in types):
                target = self._shared(name, types)
            shared.append(pa.field(name, target))
        return pa.schema(shared)

    def _shared(self, name: str, types: list[pa.DataType]) -> pa.DataType:
        """The type that holds the values of all frames; whether each value fits, casting them shows."""
        if len(types) == 1:
            return types[0]
        try:
            both = pa.unify_schemas([pa.schema([(name, one)]) for one in types], promote_options="permissive")
        except pa.ArrowException as error:
            raise DifferingFrames(
                f"column {name!r} for {self.output!r} is {types[0]} in one frame and {types[1]} in another",
                hint=f"cast it alike in every frame, or fix it: OutputSpec({self.output!r}, …, schema=…)",
                output=self.output,
                column=name,
            ) from error
        found: pa.DataType = both.field(name).type
        return found

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        where = f"a frame for {self.output!r}"
        for path, _ in self._files:
            with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
                for batch in stream:
                    table = pa.Table.from_batches([batch])
                    columns = [cast_column(table.column(f.name), f, where) for f in schema]
                    yield from pa.Table.from_arrays(columns, schema=schema).to_batches()

    def _check_names(self, names: list[str]) -> None:
        wanted = self._files[0][1].names
        missing = [name for name in wanted if name not in names]
        unknown = [name for name in names if name not in wanted]
        if missing or unknown:
            what = f"lacks the column {missing[0]!r}" if missing else f"has another column, {unknown[0]!r}"
            raise DifferingFrames(
                f"frame {self._frames} for {self.output!r} {what}; the first one has {', '.join(wanted)}",
                hint="give every frame the same columns, with nulls where there is no value",
                output=self.output,
                columns=missing + unknown,
            )

    def close(self) -> None:
        """Let go of the open file; what is kept stays."""
        if self._writer is not None:
            with explained("rows on their way", self.folder):
                self._writer.close()
            self._writer = None
