"""Checkpoints of older formats: finds them under their old keys, and converts them so that rows are not computed again.

There are three forms. `{task}` is `udf-{name}_ver-{version}_col-{column}_where-{md5}`, without escapes.

1. Ranges without a format: `{task}_uri-{md5}_srcfiles-{md5}_frag-{id}_range-{start}-{end}`. Their keys contain
   everything that current keys contain. They are used unchanged.
2. A finished fragment. Its key is the sha256 of `{dataset id}:{fragment}:{task}`, in hex. It is a batch whose `file`
   is the object key of a Parquet file with one value per row address, from 0 on.
3. A whole read task: `{task}_frag-{id}_task-{offset}-{limit}`. It is a batch of the rows with addresses
   [offset, offset + limit), with `_rowaddr` or else with one row per address.

The keys of the last two do not name their inputs. So the first computation that needs them adopts them: it converts
them to ranges of the current format and deletes them. Later they cannot be mistaken for results of other inputs.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.columns.checkpoint_batch import ERROR, ERROR_TYPE, ROWADDR
from floodmark.columns.checkpoint_store import CheckpointStore
from floodmark.derive.checkpoint_key import CheckpointPrefix, hash_text, needs_no_escaping, range_key
from floodmark.errors import BadCheckpoint, ObjectNotFound, StorageError
from floodmark.storage.arrays import I64

ADOPTED_ROWS = 1 << 16
"""How many rows each range has when a larger checkpoint is converted."""

_TASK_KEY = re.compile(r"(?s).*_where-([0-9a-f]{32})_frag-[0-9]+_task-([0-9]+)-([0-9]+)")

_log = logging.getLogger(__name__)


def task_text(prefix: CheckpointPrefix) -> str:
    """The text that older keys begin with."""
    return f"udf-{prefix.udf}_ver-{prefix.version}_col-{prefix.column}_where-{prefix.where}"


def range_prefix(prefix: CheckpointPrefix) -> str:
    """The prefix of ranges without a format."""
    return f"{task_text(prefix)}_uri-{prefix.uri}_srcfiles-{prefix.srcfiles}"


def fragment_key(prefix: CheckpointPrefix, dataset_id: str, fragment: int) -> str:
    """The key of a finished fragment."""
    return hashlib.sha256(f"{dataset_id}:{fragment}:{task_text(prefix)}".encode()).hexdigest()


def task_key(prefix: CheckpointPrefix, fragment: int, offset: int, limit: int) -> str:
    """The key of a whole read task."""
    return f"{task_text(prefix)}_frag-{fragment}_task-{offset}-{limit}"


def range_keys(store: CheckpointStore, prefix: CheckpointPrefix, fragment: int) -> list[str]:
    """The keys of a fragment's ranges without a format, under every `where`."""
    # Without escapes, names such as ("a", "b_ver-c") and ("a_ver-b", "c") give the same key. Such keys are not used.
    return store.list_any_where(range_prefix(prefix), fragment) if needs_no_escaping(prefix) else []


_Piece = tuple[int, int, I64, pa.Array, pa.Array]  # [start, end), addresses, values, errors


@dataclass(frozen=True)
class OlderCheckpoint:
    """A checkpoint of an older format that is not a range, and the rows that adopting it would give."""

    key: str
    bounds: tuple[int, int]
    rows: I64


@dataclass(frozen=True)
class _Candidate:
    """A key of an older format, the computation that would adopt it, and the content of the new ranges."""

    key: str
    prefix: CheckpointPrefix
    pieces: Iterator[_Piece]


class _MismatchedCheckpoint(Exception):
    """An undamaged checkpoint of another column or type. Keys of this form do not name them."""


def find(
    store: CheckpointStore, prefix: CheckpointPrefix, fragment: int, column: pa.Field, dataset_id: str | None
) -> Iterator[OlderCheckpoint]:
    """The checkpoints that `adopt` would convert. Nothing is changed."""
    for candidate in _candidates(store, prefix, fragment, column, dataset_id):
        try:
            pieces = [(start, end, rows) for start, end, rows, _, _ in candidate.pieces]
        except BadCheckpoint as error:
            _log.warning("%s", error.message)
        except (ObjectNotFound, _MismatchedCheckpoint):
            pass
        else:
            if pieces:
                yield OlderCheckpoint(
                    candidate.key, (pieces[0][0], pieces[-1][1]), np.concatenate([p[2] for p in pieces])
                )


def adopt(
    store: CheckpointStore, prefix: CheckpointPrefix, fragment: int, column: pa.Field, dataset_id: str | None
) -> None:
    """Convert the older checkpoints of a fragment to ranges of the current format.

    Finished fragments can only be found with the dataset id. With None, they are ignored.
    """
    for candidate in _candidates(store, prefix, fragment, column, dataset_id):
        _convert(store, fragment, candidate)


def _candidates(
    store: CheckpointStore, prefix: CheckpointPrefix, fragment: int, column: pa.Field, dataset_id: str | None
) -> Iterator[_Candidate]:
    if not needs_no_escaping(prefix):
        return
    for key in store.list_any_where(task_text(prefix), fragment):
        if found := _TASK_KEY.fullmatch(key):
            where, offset, limit = found[1], int(found[2]), int(found[3])
            yield _Candidate(key, replace(prefix, where=where), _task_batches(store, key, column, offset, limit))
    if dataset_id is None:
        return
    for where in dict.fromkeys((prefix.where, hash_text(None))):
        same = replace(prefix, where=where)
        key = fragment_key(same, dataset_id, fragment)
        if store.has(key):
            yield _Candidate(key, same, _file_batches(store, key, column, same))


def _convert(store: CheckpointStore, fragment: int, candidate: _Candidate) -> None:
    try:
        for start, end, rows, values, errors in candidate.pieces:
            schema = pa.schema([(ROWADDR, pa.int64()), (candidate.prefix.column, values.type), (ERROR, ERROR_TYPE)])
            batch = pa.RecordBatch.from_arrays([pa.array(rows), values, errors], schema=schema)
            store.put(range_key(candidate.prefix.text, fragment, start, end), batch)
    except ObjectNotFound:
        return  # another process adopted it meanwhile
    except _MismatchedCheckpoint:
        return
    except BadCheckpoint as error:
        _log.warning("%s It is deleted.", error.message)
    # Deleted last: after a crash before this, it is adopted again with the same result.
    store.delete(candidate.key)


def _task_batches(store: CheckpointStore, key: str, column: pa.Field, offset: int, limit: int) -> Iterator[_Piece]:
    batch = store.get(key)
    names = batch.schema.names
    values = _values(batch, column)
    if ROWADDR in names:
        rows = batch.column(ROWADDR).to_numpy()
    elif batch.num_rows == limit:
        rows = np.arange(offset, offset + limit)
    else:
        raise _bad(key, f"it has {batch.num_rows} rows for {limit} addresses and no row addresses")
    if len(rows) and (rows.min() < offset or rows.max() >= offset + limit or (np.diff(rows) <= 0).any()):
        raise _bad(key, f"its rows are not in order within [{offset}, {offset + limit})")
    has_errors = ERROR in names and batch.schema.field(ERROR).type.equals(ERROR_TYPE)
    errors = batch.column(ERROR) if has_errors else pa.nulls(batch.num_rows, ERROR_TYPE)
    for start in range(offset, offset + limit, ADOPTED_ROWS):
        end = min(start + ADOPTED_ROWS, offset + limit)
        low, high = np.searchsorted(rows, [start, end])
        part = slice(low, high)
        yield start, end, rows[part], values[part], errors[part]


def _file_batches(store: CheckpointStore, key: str, column: pa.Field, prefix: CheckpointPrefix) -> Iterator[_Piece]:
    batch = store.get(key)
    if "file" not in batch.schema.names or batch.num_rows != 1:
        raise _bad(key, "it does not name one file")
    file = batch.column("file")[0].as_py()
    try:
        with store.store.open(file) as opened:
            start = 0
            for read in pq.ParquetFile(opened).iter_batches(ADOPTED_ROWS, columns=[column.name]):
                values = _values(read, column)
                rows = np.arange(start, start + len(values))
                if prefix.where != hash_text(None):
                    # The rows that the filter left out are unknown, but rows with a value were computed.
                    computed = values.is_valid()
                    rows, values = rows[computed.to_numpy(zero_copy_only=False)], values.filter(computed)
                yield start, start + read.num_rows, rows, values, pa.nulls(len(values), ERROR_TYPE)
                start += read.num_rows
    except (StorageError, pa.ArrowException, OSError, TypeError) as error:
        raise _bad(key, f"its file {file!r} cannot be read: {error}") from error


def _values(batch: pa.RecordBatch, column: pa.Field) -> pa.Array:
    at = batch.schema.get_field_index(column.name)
    if at < 0 or not batch.schema.field(at).type.equals(column.type):
        raise _MismatchedCheckpoint
    return batch.column(at)


def _bad(key: str, problem: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"The checkpoint {key!r}, which is in an older format, cannot be used: {problem}.",
        hint="Delete it; the next backfill computes its rows again.",
        key=key,
        problem=problem,
    )
