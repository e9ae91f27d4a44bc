"""Failed keys: a table with one row per key whose last call raised, stored in one file of the transform meta.

The key columns come first and may have any names, even those of the fact columns after them. So `failed_column` finds
the fact columns by their position from the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.functions.failures import FAILURE_FIELDS, TIMESTAMP, bare_schema
from floodmark.functions.on_error import is_due
from floodmark.storage.arrays import I64, Hashes, Mask

RETRY, SKIPPED, EXHAUSTED = "retry", "skipped", "exhausted"


@dataclass(frozen=True)
class FailedFile:
    """The manifest's entry for the file of failed keys: its name, and counts that need not be read from it."""

    name: str
    size: int
    rows: int
    retry: int
    skipped: int
    exhausted: int
    next_due: int | None  # milliseconds: when the next retry is due; None if no key is to be retried
    stale: int  # keys that keep the rows of their last success


def keys_schema(failed: pa.Schema) -> pa.Schema:
    """The key columns of a schema of failed keys."""
    return bare_schema([failed.field(at) for at in range(len(failed) - len(FAILURE_FIELDS))])


def failed_keys(failed: pa.Table) -> pa.Table:
    """The key columns of a table of failed keys."""
    return failed.select(list(range(failed.num_columns - len(FAILURE_FIELDS))))


def failed_column(failed: pa.Table, name: str) -> pa.ChunkedArray:
    """A fact column, even if a key column has the same name."""
    return failed.column(_at(failed, name))


def failed_hashes(failed: pa.Table) -> Hashes:
    """The hashes of failed keys."""
    return Hashes(*(failed_column(failed, half).to_numpy().astype(np.uint64, copy=False) for half in ("high", "low")))


def problem_of(failed: pa.Table) -> str | None:
    """What is wrong with the columns of a table of failed keys; None if nothing is."""
    schema = failed.schema.remove_metadata()
    facts = [(field.name, field.type) for field in schema][-len(FAILURE_FIELDS) :]
    if facts != [(field.name, field.type) for field in FAILURE_FIELDS]:
        return f"the last columns of failed keys are {[name for name, _ in facts]}, not {FAILURE_FIELDS.names}"
    unknown = set(pc.unique(failed_column(failed, "state")).to_pylist()) - {RETRY, SKIPPED, EXHAUSTED}
    return f"failed keys have the state {sorted(map(str, unknown))[0]}" if unknown else None


def merge_failures(before: pa.Table, processed: Hashes, failures: pa.Table) -> pa.Table:
    """The failed keys after some keys were processed and `failures` of them failed.

    A key that had failed before keeps its `since` time.
    """
    failures = failures.cast(before.schema)
    failures = with_first_times(before, failures.take(_last_of_each(failed_hashes(failures))))
    was = failed_hashes(before)
    stay = ~was.among(processed) & ~was.among(failed_hashes(failures))
    return pa.concat_tables([before.filter(pa.array(stay)), failures])


def with_first_times(before: pa.Table, failures: pa.Table) -> pa.Table:
    """The failures, with the `since` time of keys that had failed before."""
    at = failed_hashes(failures).positions_in(failed_hashes(before))
    since = _milliseconds(failures, "since")
    again = at >= 0
    since[again] = _milliseconds(before, "since")[at[again]]
    return failures.set_column(_at(failures, "since"), FAILURE_FIELDS.field("since"), pa.array(since).cast(TIMESTAMP))


def is_stale(failed: pa.Table) -> Mask:
    """Which failed keys keep the rows of their last success."""
    stale: Mask = failed_column(failed, "stale").to_numpy()
    return stale


def with_stale(failed: pa.Table, stale: Mask) -> pa.Table:
    """The failed keys with other values of `stale`."""
    return failed.set_column(_at(failed, "stale"), FAILURE_FIELDS.field("stale"), pa.array(stale))


def due(failed: pa.Table, now_ms: int) -> pa.Table:
    """The failed keys whose next attempt is due."""
    times = failed_column(failed, "due").cast(pa.int64()).to_pylist()
    ready = pa.array([time is None or is_due(time, now_ms) for time in times], pa.bool_())
    return failed.filter(pc.and_(pc.equal(failed_column(failed, "state"), RETRY), ready))


def summary(name: str, size: int, failed: pa.Table) -> FailedFile:
    """The manifest's entry for a file of failed keys."""
    state = failed_column(failed, "state")
    counts = {s: pc.sum(pc.equal(state, s)).as_py() or 0 for s in (RETRY, SKIPPED, EXHAUSTED)}
    waiting = failed_column(failed, "due").filter(pc.equal(state, RETRY)).cast(pa.int64())
    next_due = None
    if len(waiting):
        next_due = 0 if waiting.null_count else pc.min(waiting).as_py()
    stale = int(is_stale(failed).sum())
    return FailedFile(name, size, failed.num_rows, counts[RETRY], counts[SKIPPED], counts[EXHAUSTED], next_due, stale)


def encode(failed: pa.Table, salt: str) -> bytes:
    """The table as a compressed file: tracebacks are similar."""
    sink = pa.BufferOutputStream()
    table = failed.replace_schema_metadata({"commit": salt})
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode(data: bytes) -> pa.Table:
    """The table from the bytes of a file. The caller has checked their digest."""
    return pa.ipc.open_file(pa.BufferReader(data)).read_all().replace_schema_metadata(None)


def _last_of_each(hashes: Hashes) -> I64:
    back = Hashes(hashes.high[::-1], hashes.low[::-1])
    last: I64 = np.sort(len(hashes) - 1 - back.first_positions())
    return last


def _milliseconds(failed: pa.Table, name: str) -> I64:
    milliseconds: I64 = failed_column(failed, name).cast(pa.int64()).to_numpy().copy()
    return milliseconds


def _at(failed: pa.Table, name: str) -> int:
    from_end: int = len(FAILURE_FIELDS) - FAILURE_FIELDS.get_field_index(name)
    return int(failed.num_columns) - from_end
