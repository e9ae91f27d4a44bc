"""Replacing a view, on a store in memory that gives everyone a turn at once: any crash, and any race for the name.

At each step the name has the definition before or the one after, no rows are lost, and the next refresh completes it.
DuckDB answers the queries here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import floodmark as fm
from floodmark.engine.session import Runtime
from floodmark.errors import FloodmarkError
from floodmark.ledger import names
from floodmark.maintenance import gc
from floodmark.storage.memory import MemoryStore
from floodmark.views import refresh as refreshing
from profiles import sample
from transforms.crashing import Crash
from views.refresh_worlds import NoSession
from views.remade_worlds import (
    COUNTS,
    FINER,
    MOST,
    TEXTS,
    Rows,
    datasets,
    in_order,
    right,
    shown,
    without_spark,
    write,
)

Act = Callable[[fm.Lake], object]


class Stepped(MemoryStore):
    """Objects in memory; something happens before the nth step. Everyone has a turn at once, as in a bucket."""

    def __init__(self, objects: dict[str, Any]) -> None:
        super().__init__()
        self._objects = objects
        self.left = -1
        self.happens: Callable[[], object] = lambda: None
        self.is_step: Callable[[str, bool], bool] = lambda _key, changes: changes
        self.steps = 0

    def turn(self, key: str) -> AbstractContextManager[None]:
        return nullcontext()

    def get(self, key: str) -> bytes:
        self._step(key, changes=False)
        return super().get(key)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._step(key, changes=True)
        return super().put_if_absent(key, data)

    def put_file(self, key: str, path: Path) -> bool:
        self._step(key, changes=True)
        return super().put_file(key, path)

    def put_derived(self, key: str, data: bytes) -> None:
        self._step(key, changes=True)
        super().put_derived(key, data)

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        self._step(key, changes=True)
        return super().compare_and_swap(key, expected, new)

    def delete(self, key: str) -> None:
        self._step(key, changes=True)
        super().delete(key)

    def _step(self, key: str, *, changes: bool) -> None:
        if self.is_step(key, changes):
            self.steps += 1
            self.left -= 1
            if self.left == 0:
                self.happens()

    def copy(self) -> Stepped:
        return Stepped(dict(self._objects))


def lake_on(store: Stepped) -> fm.Lake:
    return fm.Lake(store, runtime=Runtime(session=NoSession()))


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with without_spark():
        yield


@pytest.fixture(scope="module")
def refreshed() -> Stepped:
    """`daily` is COUNTS."""
    with without_spark():
        lake = lake_on(store := Stepped({}))
        lake.create("flights", key="id")
        write(lake, [(1, "a", 1), (2, "a", 2), (3, "b", 2), (4, None, 5)])
        lake.view("daily", sql=COUNTS).refresh()
    return store


@pytest.fixture(scope="module")
def begun(refreshed: Stepped) -> Stepped:
    """It is to be replaced by FINER."""
    with without_spark():
        lake_on(store := refreshed.copy()).view("daily", sql=FINER)
    return store


@pytest.fixture(scope="module")
def filled(begun: Stepped) -> Stepped:
    """FINER is filled, and yet to be installed."""
    with without_spark():
        lake = lake_on(store := begun.copy())
        with mock.patch.object(refreshing, "install", side_effect=Crash), pytest.raises(Crash):
            lake.view("daily").refresh()
    return store


# Crashes


def crashed(start: Stepped, act: Act) -> Iterator[tuple[fm.Lake, bool]]:
    """The lake after a crash before each change of the store, and at last after none."""
    act(lake_on(whole := start.copy()))
    for nth in range(1, whole.steps + 2):
        store = start.copy()

        def die(store: Stepped = store) -> None:
            store.left = 1  # nothing can be tidied up after the crash
            raise Crash

        store.happens, store.left = die, nth
        with suppress(Crash):
            act(lake_on(store))
        yield lake_on(store.copy()), nth > whole.steps


CRASHES: dict[str, tuple[str, Act, str, str]] = {
    "begin": ("refreshed", lambda lake: lake.view("daily", sql=FINER), COUNTS, FINER),
    "begin another": ("filled", lambda lake: lake.view("daily", sql=TEXTS), FINER, TEXTS),
    "build and install": ("begun", lambda lake: lake.view("daily").refresh(), FINER, FINER),
    "install": ("filled", lambda lake: lake.view("daily").refresh(), FINER, FINER),
    "withdraw": ("filled", lambda lake: lake.view("daily", sql=MOST), FINER, MOST),
}


@pytest.mark.slow
@pytest.mark.parametrize(("start", "act", "before", "after"), CRASHES.values(), ids=CRASHES.keys())
def test_crash_before_any_change_leaves_one_definition_and_all_rows(request, start, act, before, after):
    start, seen = request.getfixturevalue(start), []
    answers = {query: right(lake_on(start), query) for query in (COUNTS, MOST, TEXTS, FINER)}
    for lake, is_done in crashed(start, act):
        view = lake.view("daily")
        seen.append(view.definition.sql)
        assert seen[-1] in (before, after)
        assert not is_done or seen[-1] == after
        assert shown(lake) in (answers[COUNTS], answers[FINER])
        assert [one.name for one in lake.views()] == ["daily"]
        view.refresh()
        assert shown(lake) == in_order(view.to_arrow()) == answers[seen[-1]]
        if seen[-1] in (FINER, TEXTS):
            assert shown(lake, "daily-old-1") == answers[COUNTS]
        assert lake.view("daily").refresh().nothing
        check_no_garbage_is_left(lake)
    assert all(dataset.verify().ok for dataset in lake)
    assert seen == sorted(seen, key=[before, after].index)
    assert {before, after} == set(seen)


def check_no_garbage_is_left(lake: fm.Lake) -> None:
    """That gc removes datasets without a name, be they filled or not, once they are old; and no other ones."""
    assert gc.collect_unnamed(lake.store, oldest=time.time() - 3600) == []
    gc.collect_unnamed(lake.store, oldest=time.time() + 3600)
    assert datasets(lake) == {dataset.id.bytes.hex() for dataset in lake}
    assert all(dataset.count() for dataset in lake)


# Races


def declare(query: str) -> Act:
    return lambda lake: lake.view("daily", sql=query)


def refresh(lake: fm.Lake) -> object:
    return next(view for view in lake.views()).refresh()


def rename(lake: fm.Lake) -> object:
    return lake.rename("daily", "weekly")


def drop(lake: fm.Lake) -> object:
    return lake.drop("daily")


ACTS: dict[str, Act] = {
    "install": refresh,
    "declare in place": declare(MOST),
    "declare back": declare(COUNTS),
    "declare another": declare(TEXTS),
    "rename": rename,
    "drop": drop,
}
RACES = [(first, "install") for first in ACTS] + [("install", second) for second in ACTS if second != "install"]
RACES += [("rename", "declare in place"), ("rename", "drop"), ("declare another", "declare in place")]


def tried(lake: fm.Lake, act: Act) -> None:
    with suppress(FloodmarkError, StopIteration):  # what it is about may be dropped or renamed
        act(lake)


def outcome(lake: fm.Lake) -> tuple[dict[str, str], dict[str, Rows]]:
    """The definitions of the views, and after a refresh all rows by their names."""
    defined = {view.name: str(view.definition.sql) for view in lake.views()}
    for view in lake.views():
        view.refresh()
    rows = {dataset.name: in_order(dataset.to_arrow()) for dataset in lake}
    check_no_garbage_is_left(lake)
    return defined, rows


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), RACES, ids=[f"{second} within {first}" for first, second in RACES])
def test_race_for_a_name_ends_as_if_one_came_after_the_other(filled, first, second):
    """The second happens as a whole, before a step of the first that reads or swaps a name or a head."""
    alone, allowed = stepped_by_pointers(filled), []
    tried(lake_on(alone), ACTS[first])
    for order in ((first, second), (second, first)):
        lake = lake_on(filled.copy())
        for name in order:
            tried(lake, ACTS[name])
        allowed.append(outcome(lake))
    for moment in sample(range(1, alone.steps + 1), 16):
        store = stepped_by_pointers(filled)

        def meanwhile(store: Stepped = store) -> None:
            tried(lake_on(Stepped(store._objects)), ACTS[second])

        store.happens, store.left = meanwhile, moment
        tried(lake_on(store), ACTS[first])
        assert outcome(lake_on(Stepped(store._objects))) in allowed


def stepped_by_pointers(start: Stepped) -> Stepped:
    store = start.copy()
    store.is_step = lambda key, _changes: key.startswith("names/") or key.endswith("refs/head")
    return store


def test_definition_that_loses_against_an_install_is_declared_again_for_the_new_rows(filled):
    """Its commit lands on the chain that is replaced, which nothing reads any more."""
    store = filled.copy()
    store.is_step = lambda key, changes: changes and key.startswith("names/")
    store.happens, store.left = lambda: refresh(lake_on(Stepped(store._objects))), 1
    lake_on(store).view("daily", sql=MOST)
    lake = lake_on(Stepped(store._objects))
    assert (shown(lake), lake.view("daily").definition.sql) == (right(lake, FINER), MOST)
    assert lake.view("daily").refresh().kept_as == "daily-old-2"
    assert shown(lake) == right(lake, MOST)
    assert names.require_entry(lake.store, "daily").previous == tuple(lake[f"daily-old-{n}"].id for n in (1, 2))
