"""Pointers: small objects that change only by compare-and-swap; retries after lost races and unknown results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from floodmark.errors import ObjectNotFound, StorageError, SwapUnknown
from floodmark.storage.store import Store

_SETTLE_TRIES = 5

SwapCheck = Callable[[bytes], bool | None]
"""From newer content of a pointer: whether a swap with a lost answer happened. None: unknown."""


class RacesLost(StorageError):
    """A change was not applied because other writers replaced the pointer each time."""

    key: str


@dataclass(frozen=True)
class Pointer:
    """The pointer at a key of a store."""

    store: Store
    key: str

    def read(self) -> bytes | None:
        """The content; None if the pointer does not exist."""
        try:
            return self.store.get(self.key)
        except ObjectNotFound:
            return None

    def make_durable(self) -> None:
        """Make the current content durable: its writer may have stopped before it was."""
        for _ in attempt_numbers(MAX_RACES):
            content = self.read()
            if content is None or self.store.compare_and_swap(self.key, content, content):
                return
        raise self._lost()

    def swap(self, old: bytes | None, new: bytes, happened: SwapCheck) -> bool:
        """Replace `old` by `new`: True if the swap happened and is durable, False if another writer was faster.

        If the answer of the store is lost, the content decides. The swap needs `old`: after the content has changed,
        the swap either happened or never will. For content that is neither `old` nor `new`, `happened` decides.
        Raises `SwapUnknown` if it cannot.
        """
        try:
            return self.store.compare_and_swap(self.key, old, new)
        except SwapUnknown as error:
            cause: StorageError = error
        for _ in range(_SETTLE_TRIES):
            try:
                content = self.read()
                if content == old:
                    return self.store.compare_and_swap(self.key, old, new)
                if content is None:  # its owner, such as the dataset, is being removed
                    return False
                answer = content == new or happened(content)
                if answer:
                    self.make_durable()
                    return True
                if answer is False:
                    return False
                break
            except StorageError as error:
                cause = error
        raise SwapUnknown(
            f"The change of {self.key} may or may not have happened: {cause.message}",
            hint="Read the object to see its content.",
            key=self.key,
            url=self.store.url,
        ) from cause

    def change(self, build: Callable[[bytes | None], bytes | None], happened: SwapCheck) -> bytes | None:
        """Replace the content by the result of `build`, in the turn of the key. After a lost race, build again.

        If `build` returns None or the content itself, the current content is made durable.
        """
        with self.store.turn(self.key):
            for _ in attempt_numbers(MAX_RACES):
                old = self.read()
                new = build(old)
                if new is None or new == old:
                    if old is None or self.store.compare_and_swap(self.key, old, old):
                        return old
                elif self.swap(old, new, happened):
                    return new
        raise self._lost()

    def _lost(self) -> RacesLost:
        return RacesLost(
            f"The change of {self.key} lost {MAX_RACES} races and did not happen.", hint="Try again.", key=self.key
        )


# Retries

MAX_RACES = 50
READ_TRIES = 20

S = TypeVar("S")
T = TypeVar("T")


def attempt_numbers(tries: int, pause: Callable[[int], None] | None = None) -> Iterator[int]:
    """Number the attempts 0, 1, 2, …. Before attempts 2, 3, …, call `pause` with 1, 2, ….

    There is no pause before attempt 1: after one lost race, a writer usually wins the next one.
    """
    for race in range(tries):
        if race > 1 and pause is not None:
            pause(race - 1)
        yield race


def read_consistently(
    load: Callable[[], S],
    read: Callable[[S], T],
    has_moved: Callable[[S], bool],
    *,
    replaced: tuple[type[Exception], ...] = (),
    doubted: Callable[[T], bool] = lambda _: False,
    tries: int = READ_TRIES,
) -> T:
    """Read a snapshot, and read again while other writers replace it.

    An error of the kinds `replaced`, or an answer that is `doubted`, is final only if the snapshot is still current.
    After the last try it is always final.
    """
    for tries_left in reversed(range(tries)):
        state = load()
        try:
            result = read(state)
        except replaced:
            if not tries_left or not has_moved(state):
                raise
            continue
        if not tries_left or not doubted(result) or not has_moved(state):
            return result
    raise ValueError("no tries")
