"""A pointer: every swap happens or does not, whatever became of its answer, and what is acknowledged is durable."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import StorageError, SwapUnknown
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from floodmark.storage.pointer import Pointer, RacesLost
from limits import set_limit

KEY = "refs/head"


class Unsure(MemoryStore):
    """A store whose answers are lost: for each swap whether it happens all the same; None: the answer arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.fates: list[bool | None] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.confirmed: list[bytes] = []

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        fate = self.fates.pop(0) if self.fates else None
        if fate is None:
            done = super().compare_and_swap(key, expected, new)
            if done and expected == new:
                self.confirmed.append(new)
            return done
        if fate:
            super().compare_and_swap(key, expected, new)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        raise SwapUnknown("the line was cut", key=key, url=self.url)

    def turn(self, key: str):  # type: ignore[no-untyped-def]  # everyone at once
        return nullcontext()

    def move(self, to: bytes) -> None:
        """What another writer does."""
        MemoryStore.compare_and_swap(self, KEY, self.get(KEY), to)


@pytest.fixture
def store() -> Unsure:
    made = Unsure()
    made.compare_and_swap(KEY, None, b"a")
    return made


def never(_: bytes) -> bool:
    raise AssertionError("the content alone tells")


def test_swap_from_what_is_there_happens_and_from_anything_else_does_not(store: Unsure):
    pointer = Pointer(store, KEY)
    assert pointer.swap(b"a", b"b", never)
    assert not pointer.swap(b"a", b"c", never)
    assert pointer.read() == b"b"
    assert Pointer(store, "refs/other").read() is None


@pytest.mark.parametrize("fates", [[True], [False], [False, True], [False, False, False], [True, None]])
def test_swap_whose_answer_is_lost_happens_once_and_is_made_durable(store: Unsure, fates: list[bool | None]):
    store.fates = fates
    assert Pointer(store, KEY).swap(b"a", b"b", never)
    assert store.get(KEY) == b"b"


def test_swap_that_is_seen_is_confirmed_before_it_is_acknowledged(store: Unsure):
    store.fates = [True]
    assert Pointer(store, KEY).swap(b"a", b"b", never)
    assert store.confirmed == [b"b"]


@pytest.mark.parametrize("answer", [True, False])
def test_caller_decides_when_others_have_gone_on(store: Unsure, answer: bool):
    store.fates, store.meanwhile = [True], lambda: store.move(b"c")
    asked: list[bytes] = []
    assert Pointer(store, KEY).swap(b"a", b"b", lambda found: asked.append(found) or answer) is answer
    assert (asked, store.get(KEY)) == ([b"c"], b"c")
    assert store.confirmed == ([b"c"] if answer else [])


def test_swap_that_nobody_can_tell_of_is_unknown(store: Unsure):
    store.fates, store.meanwhile = [True], lambda: store.move(b"c")
    with pytest.raises(SwapUnknown, match="may or may not have happened") as caught:
        Pointer(store, KEY).swap(b"a", b"b", lambda _: None)
    assert caught.value.key == KEY


def test_store_that_never_answers_is_unknown(store: Unsure):
    store.fates = [False] * 20
    with pytest.raises(SwapUnknown, match="the line was cut"):
        Pointer(store, KEY).swap(b"a", b"b", never)


def test_pointer_that_is_gone_after_a_lost_answer_was_not_swapped(store: Unsure):
    store.fates, store.meanwhile = [False], lambda: store.delete(KEY)
    assert not Pointer(store, KEY).swap(b"a", b"b", never)


def test_change_that_changes_nothing_makes_what_is_there_durable(store: Unsure):
    assert Pointer(store, KEY).change(lambda old: old, lambda _: None) == b"a"
    assert store.confirmed == [b"a"]
    assert Pointer(store, "refs/other").change(lambda _: None, lambda _: None) is None


def test_change_that_loses_every_race_says_so(store: Unsure, monkeypatch: pytest.MonkeyPatch):
    set_limit(monkeypatch, "pointer.max_races", 3)
    seen: list[bytes | None] = []

    def build(old: bytes | None) -> bytes:
        seen.append(old)
        store.move(b"%d" % len(seen))
        return b"mine"

    with pytest.raises(RacesLost, match="lost 3 races"):
        Pointer(store, KEY).change(build, lambda _: False)
    assert seen == [b"a", b"1", b"2"]


@given(st.lists(st.lists(st.sampled_from([True, False, None]), max_size=7), max_size=8))
def test_history_of_lost_answers_has_every_acknowledged_change_once(histories: list[list[bool | None]]):
    """The content is the list of changes; a change whose outcome is unknown may be there or not."""
    store = Unsure()
    pointer = Pointer(store, KEY)
    sure: set[int] = set()
    unsure: set[int] = set()
    for number, fates in enumerate(histories):
        store.fates = list(fates)
        mark = b"%d;" % number

        def build(old: bytes | None, mark: bytes = mark) -> bytes:
            return (old or b"") + mark

        try:
            pointer.change(build, lambda found, mark=mark: mark in found)
            sure.add(number)
        except StorageError:
            unsure.add(number)
    there = [int(part) for part in (pointer.read() or b"").split(b";") if part]
    assert len(there) == len(set(there)), "no change happens twice"
    assert sure <= set(there) <= sure | unsure


@pytest.mark.process
def test_changes_of_many_threads_all_happen(tmp_path):
    store = LocalStore(tmp_path)

    def add(number: int) -> None:
        for i in range(5):
            Pointer(store, KEY).change(lambda old, i=i: (old or b"") + b"%d;" % (number * 5 + i), lambda _: None)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there = [int(part) for part in store.get(KEY).split(b";") if part]
    assert sorted(there) == list(range(20))
