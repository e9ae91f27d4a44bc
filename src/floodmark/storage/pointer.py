"""A pointer: one small object that is replaced only by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from floodmark.storage.errors import ObjectNotFound, StorageError, SwapUnknown
from floodmark.storage.retry import MAX_RACES, races
from floodmark.storage.store import Store

_SETTLE_TRIES = 5

Happened = Callable[[bytes], bool | None]
"""Whether a swap happened whose answer was lost, from the content that others made of it since. None: unknown."""


class LostRaces(StorageError):
    """Others replaced a pointer each time before this change."""

    key: str


@dataclass(frozen=True)
class Pointer:
    """The pointer under a key of a store."""

    store: Store
    key: str

    def read(self) -> bytes | None:
        """The content; None when there is none."""
        try:
            return self.store.get(self.key)
        except ObjectNotFound:
            return None

    def confirm(self) -> None:
        """Make the present content durable: the writer that put it there may have stopped before."""
        for _ in races(MAX_RACES):
            content = self.read()
            if content is None or self.store.compare_and_swap(self.key, content, content):
                return
        raise self._lost()

    def swap(self, old: bytes | None, new: bytes, happened: Happened) -> bool:
        """Replace `old` by `new`: True when it happened and is durable, False when others were first.

        When the answer is lost, the content tells. A swap works only from `old`: once the content differs, it either
        happened or never will. `happened` decides when the content is neither. Raises `SwapUnknown` when it cannot.
        """
        try:
            return self.store.compare_and_swap(self.key, old, new)
        except SwapUnknown as error:
            cause: StorageError = error
        for _ in range(_SETTLE_TRIES):
            try:
                found = self.read()
                if found == old:
                    return self.store.compare_and_swap(self.key, old, new)
                if found is None:  # what it belongs to is being removed
                    return False
                answer = found == new or happened(found)
                if answer:
                    self.confirm()
                    return True
                if answer is False:
                    return False
                break
            except StorageError as error:
                cause = error
        raise SwapUnknown(
            f"the change of {self.key} may or may not have happened: {cause.message}",
            hint="read it to see",
            key=self.key,
            url=self.store.url,
        ) from cause

    def change(self, build: Callable[[bytes | None], bytes | None], happened: Happened) -> bytes | None:
        """Swap in what `build` makes of the content, under the key's turn; after a lost race build again.

        When `build` returns the content itself, that is made durable.
        """
        with self.store.turn(self.key):
            for _ in races(MAX_RACES):
                old = self.read()
                new = build(old)
                if new is None or new == old:
                    if old is None or self.store.compare_and_swap(self.key, old, old):
                        return old
                elif self.swap(old, new, happened):
                    return new
        raise self._lost()

    def _lost(self) -> LostRaces:
        return LostRaces(
            f"the change of {self.key} lost {MAX_RACES} races and did not happen", hint="try again", key=self.key
        )
