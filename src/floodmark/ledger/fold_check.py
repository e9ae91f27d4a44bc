"""Checking folded files against the hashes that their manifest keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from floodmark.ledger.fold_manifest import FoldedFile, load_manifest
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.slice_check import Problem
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.document import Damaged
from floodmark.storage.errors import ObjectNotFound

_CHUNK = 8 << 20
_THREADS = 2
_REMEDY = "fold() makes it anew from the slices"


def fold_problems(snapshot: Snapshot) -> Iterator[Problem]:
    """What is wrong with the folded files; a missing one is not, since its slices are read instead."""
    objects = snapshot.objects
    try:
        manifest = load_manifest(objects)
    except Damaged as error:
        message = f"the fold manifest is damaged: {error.problem}; {_REMEDY}"
        yield Problem("fold", objects.fold_manifest_key, message)
        return
    for folded in manifest.files:
        key = folded.key(objects)
        if folded.rows and (found := _digest(objects, key)) is not None and found != folded.digest:
            where = f"folded rows of offsets {folded.start}–{folded.end - 1}"
            yield Problem("fold", key, f"{where}: the file was changed or damaged; {_REMEDY}")


def damaged(objects: DatasetObjects, files: Sequence[FoldedFile]) -> list[FoldedFile]:
    """Those of the files that are gone or do not have their hashes; every byte is read."""
    kept = [f for f in files if f.rows]
    with ThreadPoolExecutor(_THREADS) as hashing:  # hashing and reading both release the GIL
        digests = list(hashing.map(lambda f: _digest(objects, f.key(objects)), kept))
    return [f for f, digest in zip(kept, digests, strict=True) if digest != f.digest]


def _digest(objects: DatasetObjects, key: str) -> str | None:
    hasher = hashlib.sha3_256()
    try:
        with objects.store.open(key) as file:
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
    except ObjectNotFound:
        return None
    return hasher.hexdigest()
