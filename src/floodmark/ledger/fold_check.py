"""Checking folded files against the hashes that their manifest keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from floodmark.ledger.fold_manifest import BadManifest, decode
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.slice_check import Problem
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.errors import ObjectNotFound

_CHUNK = 8 << 20
_REMEDY = "delete it: reads then take the slices, and the next fold writes it again"


def fold_problems(snapshot: Snapshot) -> Iterator[Problem]:
    """What is wrong with the folded files; a missing one is not, since its slices are read instead."""
    objects = snapshot.objects
    try:
        manifest = decode(objects.store.get(objects.fold_manifest_key))
    except ObjectNotFound:
        return
    except BadManifest as error:
        yield Problem("fold", objects.fold_manifest_key, f"the fold manifest is {error}; {_REMEDY}")
        return
    for folded in manifest.files:
        key = folded.key(objects)
        if folded.rows and (found := _digest(objects, key)) is not None and found != folded.digest:
            where = f"folded rows of offsets {folded.start}–{folded.end - 1}"
            yield Problem("fold", key, f"{where}: the file was changed or damaged; {_REMEDY}")


def _digest(objects: DatasetObjects, key: str) -> str | None:
    hasher = hashlib.sha3_256()
    try:
        with objects.store.open(key) as file:
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
    except ObjectNotFound:
        return None
    return hasher.hexdigest()
