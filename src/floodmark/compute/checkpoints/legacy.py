"""Checkpoints of older formats: found under the keys they had then, and used instead of computing again.

Three forms are known. `{task}` is `udf-{name}_ver-{version}_col-{column}_where-{md5}`, without escapes.

1. Ranges without a format: `{task}_uri-{md5}_srcfiles-{md5}_frag-{id}_range-{start}-{end}`. They say everything that
   today's keys say and are used where they are.
2. A finished fragment: sha256 of `{dataset id}:{fragment}:{task}`, in hex; a batch whose `file` is the store's key of a
   Parquet file with one value per row address, from 0 on.
3. A whole read task: `{task}_frag-{id}_task-{offset}-{limit}`; a batch of the rows with addresses
   [offset, offset + limit), with `_rowaddr` or else with one row per address.

The last two do not say which inputs they were computed from. So the first computation that asks adopts them: they are
made into ranges of today's format and deleted, and cannot be taken for the results of other inputs later on.
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

from floodmark.compute.checkpoints.batches import ERROR, ERROR_TYPE, ROWADDR
from floodmark.compute.checkpoints.keys import Prefix, hash_text, is_plain, range_key
from floodmark.compute.checkpoints.store import CheckpointStore
from floodmark.compute.errors import BadCheckpoint
from floodmark.storage.arrays import I64
from floodmark.storage.errors import ObjectNotFound, StorageError

ADOPTED_ROWS = 1 << 16
"""How many rows the ranges have that larger checkpoints are cut into."""

_TASK_KEY = re.compile(r"(?s).*_where-([0-9a-f]{32})_frag-[0-9]+_task-([0-9]+)-([0-9]+)")

_log = logging.getLogger(__name__)


def task_text(prefix: Prefix) -> str:
    """What older keys begin with."""
    return f"udf-{prefix.udf}_ver-{prefix.version}_col-{prefix.column}_where-{prefix.where}"


def range_prefix(prefix: Prefix) -> str:
    """The prefix of ranges without a format."""
    return f"{task_text(prefix)}_uri-{prefix.uri}_srcfiles-{prefix.srcfiles}"


def fragment_key(prefix: Prefix, dataset_id: str, fragment: int) -> str:
    """The key of a finished fragment."""
    return hashlib.sha256(f"{dataset_id}:{fragment}:{task_text(prefix)}".encode()).hexdigest()


def task_key(prefix: Prefix, fragment: int, offset: int, limit: int) -> str:
    """The key of a whole read task."""
    return f"{task_text(prefix)}_frag-{fragment}_task-{offset}-{limit}"


def range_keys(store: CheckpointStore, prefix: Prefix, fragment: int) -> list[str]:
    """The keys of a fragment's ranges without a format, whatever their `where`."""
    # Such a key does not tell ("a", "b_ver-c") from ("a_ver-b", "c"): then it proves nothing.
    return store.list_any_where(range_prefix(prefix), fragment) if is_plain(prefix) else []


_Piece = tuple[int, int, I64, pa.Array, pa.Array]  # [start, end), addresses, values, errors


@dataclass(frozen=True)
class Older:
    """A checkpoint of an older format that is not a range: what it would be adopted as."""

    key: str
    bounds: tuple[int, int]
    rows: I64


@dataclass(frozen=True)
class _Candidate:
    """A key of an older format, the computation whose ranges it would become, and what they would hold."""

    key: str
    prefix: Prefix
    pieces: Iterator[_Piece]


class _OtherValues(Exception):
    """A whole checkpoint of another column or type than was asked for: these keys do not tell."""


def find(
    store: CheckpointStore, prefix: Prefix, fragment: int, column: pa.Field, dataset_id: str | None
) -> Iterator[Older]:
    """What `adopt` would make ranges of, left as it is."""
    for candidate in _candidates(store, prefix, fragment, column, dataset_id):
        try:
            pieces = [(start, end, rows) for start, end, rows, _, _ in candidate.pieces]
        except BadCheckpoint as error:
            _log.warning("%s", error.message)
        except (ObjectNotFound, _OtherValues):
            pass
        else:
            if pieces:
                yield Older(candidate.key, (pieces[0][0], pieces[-1][1]), np.concatenate([p[2] for p in pieces]))


def adopt(store: CheckpointStore, prefix: Prefix, fragment: int, column: pa.Field, dataset_id: str | None) -> None:
    """Make ranges of today's format of what older ones have for this fragment.

    Finished fragments can only be looked for by the dataset's id; None leaves them alone.
    """
    for candidate in _candidates(store, prefix, fragment, column, dataset_id):
        _adopt(store, fragment, candidate)


def _candidates(
    store: CheckpointStore, prefix: Prefix, fragment: int, column: pa.Field, dataset_id: str | None
) -> Iterator[_Candidate]:
    if not is_plain(prefix):
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


def _adopt(store: CheckpointStore, fragment: int, candidate: _Candidate) -> None:
    try:
        for start, end, rows, values, errors in candidate.pieces:
            schema = pa.schema([(ROWADDR, pa.int64()), (candidate.prefix.column, values.type), (ERROR, ERROR_TYPE)])
            batch = pa.RecordBatch.from_arrays([pa.array(rows), values, errors], schema=schema)
            store.put(range_key(candidate.prefix.text, fragment, start, end), batch)
    except ObjectNotFound:
        return  # another process adopted it meanwhile
    except _OtherValues:
        return
    except BadCheckpoint as error:
        _log.warning("%s It is deleted.", error.message)
    # Only now: until here a crash leaves it to be adopted again, with the same result.
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
        raise _bad(key, f"it has {batch.num_rows} rows for {limit} addresses and does not say which")
    if len(rows) and (rows.min() < offset or rows.max() >= offset + limit or (np.diff(rows) <= 0).any()):
        raise _bad(key, f"its rows are not in order within [{offset}, {offset + limit})")
    has_errors = ERROR in names and batch.schema.field(ERROR).type.equals(ERROR_TYPE)
    errors = batch.column(ERROR) if has_errors else pa.nulls(batch.num_rows, ERROR_TYPE)
    for start in range(offset, offset + limit, ADOPTED_ROWS):
        end = min(start + ADOPTED_ROWS, offset + limit)
        low, high = np.searchsorted(rows, [start, end])
        part = slice(low, high)
        yield start, end, rows[part], values[part], errors[part]


def _file_batches(store: CheckpointStore, key: str, column: pa.Field, prefix: Prefix) -> Iterator[_Piece]:
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
                    # Which rows a filter left out is not known; those that have a value were surely computed.
                    computed = values.is_valid()
                    rows, values = rows[computed.to_numpy(zero_copy_only=False)], values.filter(computed)
                yield start, start + read.num_rows, rows, values, pa.nulls(len(values), ERROR_TYPE)
                start += read.num_rows
    except (StorageError, pa.ArrowException, OSError, TypeError) as error:
        raise _bad(key, f"its file {file!r} cannot be read: {error}") from error


def _values(batch: pa.RecordBatch, column: pa.Field) -> pa.Array:
    at = batch.schema.get_field_index(column.name)
    if at < 0 or not batch.schema.field(at).type.equals(column.type):
        raise _OtherValues
    return batch.column(at)


def _bad(key: str, problem: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"The checkpoint {key!r}, which is in an older format, cannot be used: {problem}.",
        hint="Delete it; the next backfill computes its rows again.",
        key=key,
        problem=problem,
    )
