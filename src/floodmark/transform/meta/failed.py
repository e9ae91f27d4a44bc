"""Failed keys: a table with a row for each key whose last call raised, kept as a file of its own.

The key's columns come first and may have any names, even those of the columns after them: so those are found
by their place from the end, with `failed_column`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.storage.arrays import I64, Hashes

MOMENT = pa.timestamp("ms", "UTC")
FACTS = pa.schema(
    [
        pa.field("high", pa.uint64(), nullable=False),
        pa.field("low", pa.uint64(), nullable=False),
        pa.field("type", pa.string()),
        pa.field("message", pa.string()),
        pa.field("traceback", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("since", MOMENT),
        pa.field("last", MOMENT),
        pa.field("state", pa.string()),
        pa.field("due", MOMENT),
    ]
)
"""What is known of a failure, after the columns of its key. A `due` of null is at once."""

RETRY, SKIPPED, EXHAUSTED = "retry", "skipped", "exhausted"


@dataclass(frozen=True)
class FailedFile:
    """The file of failed keys as the manifest names it, and what need not be read from it."""

    name: str
    size: int
    rows: int
    retry: int
    skipped: int
    exhausted: int
    next_due: int | None  # milliseconds; of those to be retried, None when there are none


def failed_schema(keys: pa.Schema) -> pa.Schema:
    """The columns of a table of failed keys: those of the key, then what is known of the failure."""
    return pa.schema([*keys_only(keys), *FACTS])


def no_failures(keys: pa.Schema) -> pa.Table:
    """A table of failed keys without any."""
    return failed_schema(keys).empty_table()


def keys_schema(failed: pa.Schema) -> pa.Schema:
    """The columns of the key of such a table."""
    return keys_only([failed.field(at) for at in range(len(failed) - len(FACTS))])


def keys_only(fields: Iterable[pa.Field]) -> pa.Schema:
    """Names and types: what hashes depend on."""
    return pa.schema([pa.field(field.name, field.type) for field in fields])


def failed_keys(failed: pa.Table) -> pa.Table:
    """The key columns of failed keys."""
    return failed.select(list(range(failed.num_columns - len(FACTS))))


def failed_column(failed: pa.Table, name: str) -> pa.ChunkedArray:
    """A column after those of the key, whatever the key's columns are called."""
    return failed.column(_at(failed, name))


def failed_hashes(failed: pa.Table) -> Hashes:
    """The hashes of failed keys."""
    return Hashes(*(failed_column(failed, half).to_numpy().astype(np.uint64, copy=False) for half in ("high", "low")))


def problem_of(failed: pa.Table) -> str | None:
    """What is wrong with the columns of a table of failed keys, if anything."""
    schema = failed.schema.remove_metadata()
    facts = [(field.name, field.type) for field in schema][-len(FACTS) :]
    if facts != [(field.name, field.type) for field in FACTS]:
        return f"the last columns of failed keys are {[name for name, _ in facts]}, not {FACTS.names}"
    unknown = set(pc.unique(failed_column(failed, "state")).to_pylist()) - {RETRY, SKIPPED, EXHAUSTED}
    return f"failed keys have the state {sorted(map(str, unknown))[0]}" if unknown else None


def after(before: pa.Table, processed: Hashes, failures: pa.Table) -> pa.Table:
    """The failed keys once some keys were processed and some of those failed (again).

    A key that has failed before keeps the moment since when it does.
    """
    failures = failures.cast(before.schema)
    failures = failures.take(_last_of_each(failed_hashes(failures)))
    was = failed_hashes(before)
    at = failed_hashes(failures).positions_in(was)
    since = _milliseconds(failures, "since")
    again = at >= 0
    since[again] = _milliseconds(before, "since")[at[again]]
    failures = failures.set_column(_at(failures, "since"), FACTS.field("since"), pa.array(since).cast(MOMENT))
    stay = ~was.among(processed) & ~was.among(failed_hashes(failures))
    return pa.concat_tables([before.filter(pa.array(stay)), failures])


def due(failed: pa.Table, now_ms: int) -> pa.Table:
    """Those that are to be tried again by now."""
    now = pa.scalar(now_ms, pa.int64()).cast(MOMENT)
    ready = pc.fill_null(pc.less_equal(failed_column(failed, "due"), now), True)
    return failed.filter(pc.and_(pc.equal(failed_column(failed, "state"), RETRY), ready))


def summary(name: str, size: int, failed: pa.Table) -> FailedFile:
    """What the manifest says of a file of failed keys."""
    state = failed_column(failed, "state")
    counts = {s: pc.sum(pc.equal(state, s)).as_py() or 0 for s in (RETRY, SKIPPED, EXHAUSTED)}
    waiting = failed_column(failed, "due").filter(pc.equal(state, RETRY)).cast(pa.int64())
    next_due = None
    if len(waiting):
        next_due = 0 if waiting.null_count else pc.min(waiting).as_py()
    return FailedFile(name, size, failed.num_rows, counts[RETRY], counts[SKIPPED], counts[EXHAUSTED], next_due)


def encode(failed: pa.Table, salt: str) -> bytes:
    """The table as a file; compressed, since tracebacks are alike."""
    sink = pa.BufferOutputStream()
    table = failed.replace_schema_metadata({"commit": salt})
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode(data: bytes) -> pa.Table:
    """The table from a file whose digest was seen to be right."""
    return pa.ipc.open_file(pa.BufferReader(data)).read_all().replace_schema_metadata(None)


def _last_of_each(hashes: Hashes) -> I64:
    back = Hashes(hashes.high[::-1], hashes.low[::-1])
    last: I64 = np.sort(len(hashes) - 1 - back.first_of_each())
    return last


def _milliseconds(failed: pa.Table, name: str) -> I64:
    milliseconds: I64 = failed_column(failed, name).cast(pa.int64()).to_numpy().copy()
    return milliseconds


def _at(failed: pa.Table, name: str) -> int:
    from_end: int = len(FACTS) - FACTS.get_field_index(name)
    return int(failed.num_columns) - from_end
