"""A store in which something happens just before the head of a dataset moves: another writer, or a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import floodmark as fm
from floodmark.storage.cloud import CloudStore
from floodmark.storage.memory import MemoryStore
from transforms.crashing import Crash
from transforms.worlds import Calls, Case, World


class _BeforeMoves:
    """A part of a store that acts before heads move."""

    _hook: Callable[[str], None] | None = None

    def turn(self, key: str) -> AbstractContextManager[None]:
        return nullcontext()

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        hook = self._hook
        if hook is not None and key.endswith("/refs/head") and expected not in (None, new):
            self._hook = None  # heads that the hook moves have none
            try:
                hook(key)
            finally:
                self._hook = hook
        return bool(super().compare_and_swap(key, expected, new))  # type: ignore[misc]

    @contextmanager
    def before_next_move(self, act: Callable[[], Any]) -> Iterator[None]:
        """Act once, before the next move of a head; fail when there is none."""
        done: list[str] = []

        def once(key: str) -> None:
            if not done:
                done.append(key)
                act()

        with self._hooked(once):
            yield
        assert done, "no head has moved"

    def before_every_move(self, act: Callable[[], Any]) -> AbstractContextManager[None]:
        return self._hooked(lambda _: act())

    def before_moves_of(self, lake: fm.Lake, name: str, act: Callable[[], Any]) -> AbstractContextManager[None]:
        """Act before the head of one dataset moves, which need not be there yet."""
        return self._hooked(lambda key: act() if key == lake[name].snapshot().objects.head_key else None)

    @contextmanager
    def _hooked(self, hook: Callable[[str], None]) -> Iterator[None]:
        self._hook = hook
        try:
            yield
        finally:
            self._hook = None


class RacedStore(_BeforeMoves, MemoryStore):
    """Objects in memory; like a bucket it gives everyone a turn at once, so that writers can overtake each other."""


class RacedBucket(_BeforeMoves, CloudStore):
    """The same in a bucket. Copies in other processes act on nothing."""


def raced_world(case: Case, folder: Path, **options: Any) -> World:
    """An empty world of a case in such a store."""
    lake = fm.Lake(RacedStore())
    case.create(lake)
    return World(case, lake, Calls(folder), options)


def store_of(world: World) -> RacedStore | RacedBucket:
    assert isinstance(world.lake.store, RacedStore | RacedBucket)
    return world.lake.store


def crash_before(world: World, output: str, process: Callable[[], Any]) -> None:
    """Let a run crash before it commits to an output."""
    with store_of(world).before_moves_of(world.lake, output, _crash), pytest.raises(Crash):
        process()


def _crash() -> None:
    raise Crash
