"""The error for records that could not be read: removed while they were read, or in a damaged file."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.errors import (
    DAMAGED_HINT,
    FloodmarkError,
    ObjectNotFound,
    PurgedWhileRead,
    StorageError,
    UnreadableSlice,
)
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import load_snapshot

_READ_AGAIN = "read again: the dataset has changed, and nothing is damaged"


def unreadable_records(
    objects: DatasetObjects, start: int, end: int, error: Exception, keys: Iterable[str] = ()
) -> UnreadableSlice:
    """The error for the records [start, end), in the slices with these keys, that could not be read."""
    records = f"some of the records {start} to {end - 1}"
    with suppress(FloodmarkError):  # then the first error is the one to report
        head = objects.read_head()
        if head is None:
            return UnreadableSlice(f"{records} cannot be read: their dataset was dropped", hint="open it again by name")
        snapshot = load_snapshot(objects, head, {})
        if start < snapshot.purged_before:
            return PurgedWhileRead(
                f"{records} were purged while they were read: records before {snapshot.purged_before} are gone",
                hint=_READ_AGAIN,
                purged_before=snapshot.purged_before,
            )
        present = {objects.data_key(Multihash(SHA3_256, one)) for one in snapshot.slices.column("physical").to_pylist()}
        if any(key.startswith(objects.data_prefix) and key not in present for key in keys):
            return UnreadableSlice(f"{records} were erased while they were read", hint=_READ_AGAIN)
    message = error.message if isinstance(error, FloodmarkError) else str(error).partition("\n")[0]
    is_passing = isinstance(error, StorageError) and not isinstance(error, ObjectNotFound)
    hint = error.hint if isinstance(error, StorageError) and is_passing else DAMAGED_HINT
    return UnreadableSlice(f"{records} cannot be read: {message}", hint=hint)
