"""Drafts: the meta as it will be after a commit, with the files that have to be in the store before it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.chain.events import Checkpoint
from floodmark.chain.hashes import Multihash
from floodmark.ledger.objects import DatasetObjects
from floodmark.transform.errors import TransformError

if TYPE_CHECKING:
    from floodmark.transform.meta.meta import TransformMeta


class Draft:
    """A step's meta that waits to be committed. Unfinished files go when it is closed or let go of."""

    def __init__(
        self,
        meta: TransformMeta,
        files: Mapping[str, Path],
        whole: Mapping[str, bytes],
        checkpoint: Checkpoint,
        superseded: tuple[str, ...],
        held: ExitStack,
    ) -> None:
        self.meta = meta
        """The meta after the commit; its keys can be looked up once the files are put."""
        self.checkpoint = checkpoint
        self.superseded = superseded
        """Keys of objects that nobody needs once this is committed; they can be deleted then."""
        self._files = files
        self._whole = whole
        self.close = weakref.finalize(self, held.close)

    def put(self, objects: DatasetObjects) -> None:
        """Store the files durably, the manifest last; doing it again does nothing."""
        for name, path in self._files.items():
            key = objects.checkpoint_key(Multihash.parse(name))
            # Putting a file takes it away, so one that is not here any more should be there.
            if path.exists():
                objects.store.put_file(key, path)
            elif objects.store.stat(key) is None:
                raise TransformError(
                    f"the draft of the transform meta of {objects.folder!r} was closed before it was put",
                    hint="nothing was committed: run the step again",
                    dataset=objects.folder,
                )
        for name, data in self._whole.items():
            objects.store.put_if_absent(objects.checkpoint_key(Multihash.parse(name)), data)

    def discard_superseded(self, objects: DatasetObjects) -> None:
        """Delete what nobody needs any more; to be called after the commit."""
        for key in self.superseded:
            objects.store.delete(key)
