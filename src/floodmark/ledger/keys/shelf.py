"""Keeping a key index beside the chain: the manifest is written last, and what it replaces goes some commits later."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from floodmark.ledger.keys.files import KeyFiles
from floodmark.ledger.keys.manifest import Manifest, encode
from floodmark.storage.errors import StorageError

HISTORY = 16
"""A manifest and the files that only it names stay for so many commits: somebody may be reading with it."""

SWEEP_EVERY = 64
"""After so many commits the folder is searched for files that nothing names."""

ORPHANED_AFTER = 24 * 3600.0
"""A file that nothing names is left alone for so many seconds: its commit may be under way."""

_log = logging.getLogger(__name__)


def keep(files: KeyFiles, manifest: Manifest, before: Manifest | None, written: frozenset[str]) -> Manifest | None:
    """Write a manifest that follows `before`; None when the store does not take it.

    `written` are the files put since then: those that are already merged into others are removed.
    """
    names = manifest.names
    generation = before.generation + 1 if before else 0
    retired = [(g, name) for g, name in (before.retired if before else ()) if name not in names]
    retired += [(generation, name) for name in sorted((before.names if before else set()) - names)]
    previous = [name for name in ((before.name, *before.previous) if before else ()) if name != manifest.name]
    gone = [name for g, name in retired if g <= generation - HISTORY]
    manifest = replace(
        manifest,
        generation=generation,
        previous=tuple(previous[:HISTORY]),
        retired=tuple((g, name) for g, name in retired if g > generation - HISTORY),
    )
    if not files.are_kept:
        return None
    objects = files.objects
    try:
        objects.store.put_derived(objects.key_manifest_key(manifest.name), encode(manifest))
        for name in previous[HISTORY:]:
            objects.store.delete(objects.key_manifest_key(name))
        still_named = names | {name for _, name in manifest.retired}
        remove(files, (set(gone) | written) - still_named)
        if generation % SWEEP_EVERY == SWEEP_EVERY - 1:
            _sweep(files, manifest)
    except (OSError, StorageError) as error:
        _log.warning("the key index of %s could not be kept (%s); it will be caught up later", objects.folder, error)
        return None
    return manifest


def remove(files: KeyFiles, names: set[str]) -> None:
    """Remove files that no manifest names any more."""
    for name in sorted(names):
        files.objects.store.delete(files.objects.key_file_key(name))
    files.forget(names)


def discard(files: KeyFiles, manifest: Manifest | None) -> None:
    """Remove a manifest that leads to damaged files, and those before it, so that nobody begins from them."""
    objects = files.objects
    try:
        for name in (manifest.name, *manifest.previous) if manifest else ():
            objects.store.delete(objects.key_manifest_key(name))
    except (OSError, StorageError) as error:
        _log.warning("the damaged key index of %s could not be removed (%s)", objects.folder, error)


def _sweep(files: KeyFiles, manifest: Manifest) -> None:
    """Remove what crashes and lost races left behind."""
    objects = files.objects
    long_ago = time.time() - ORPHANED_AFTER
    manifests = {manifest.name, *manifest.previous}
    for info in list(objects.key_manifests()):
        if info.modified < long_ago and _name(info.key) not in manifests:
            objects.store.delete(info.key)
    named = manifest.names | {name for _, name in manifest.retired}
    for info in list(objects.key_files()):
        if info.modified < long_ago and _name(info.key) not in named:
            objects.store.delete(info.key)


def _name(key: str) -> str:
    return key.rsplit("/", 1)[-1]
