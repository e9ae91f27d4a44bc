"""A view is found by its name whatever another process does to it meanwhile: made anew, and its old rows dropped.

DuckDB answers the queries here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import floodmark as fm
from floodmark.engine.session import Runtime
from floodmark.ledger.names import find_input_name
from floodmark.storage.local import LocalStore
from floodmark.view import View
from floodmark.views import refresh, replacement
from floodmark.views.attempt import RefreshAttempt
from floodmark.views.plan import RefreshReport
from views.refresh_worlds import NoSession
from views.remade_worlds import (
    COUNTS,
    FINER,
    ON_VIEW,
    in_order,
    make_lake,
    open_lake,
    right,
    shown,
    without_spark,
    write,
)


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with without_spark():
        yield


class Interrupted(LocalStore):
    """A store that lets something happen once, before the n-th read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.left = -1
        self.happens: Callable[[], object] = lambda: None

    def get(self, key: str) -> bytes:
        self.left -= 1
        if self.left == 0:
            self.happens()
        return super().get(key)


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    """A lake whose view `daily` is made anew as FINER, and filled, but has not taken its place yet."""
    folder = tmp_path_factory.mktemp("filled") / "lake"
    with without_spark():
        lake = make_lake(folder)
        lake.view("above", sql=ON_VIEW).refresh()
        lake.view("daily", sql=FINER)
        with mock.patch.object(refresh, "install", side_effect=InterruptedError), pytest.raises(InterruptedError):
            lake.view("daily").refresh()
    return folder


def read(view: View) -> None:
    rows = in_order(view.to_arrow())
    calm = open_lake(Path(view._lake.store.url.removeprefix("file://")))  # whose reads are no moments
    assert rows in (right(calm, COUNTS), right(calm, FINER))


def names_of_views(view: View) -> None:
    assert [one.name for one in view._lake.views()] == ["above", "daily"]


def take_place(lake: fm.Lake) -> None:
    found = replacement.find_view(lake, "daily")
    assert found.replaces is not None
    heir = found.refreshed.state.dataset_id
    assert heir is not None
    replacement.install(lake, "daily", found.replaces, heir)


def take_place_and_drop(lake: fm.Lake) -> None:
    take_place(lake)
    lake.drop("daily-old-1")


Ask = Callable[[fm.Lake, View], Any]
Happens = Callable[[fm.Lake], None]

ASKED: dict[str, tuple[Ask, Happens]] = {
    "read": (lambda lake, _: read(lake.view("daily")), take_place),
    "listed": (lambda _, held: names_of_views(held), take_place),
    "plan": (lambda lake, _: lake.view("daily").plan_refresh(), take_place),
    "held, its plan": (lambda _, held: held.plan_refresh(), take_place),
    "opened, old rows dropped": (lambda lake, _: lake.view("daily").definition, take_place_and_drop),
    "sources, old rows dropped": (lambda lake, _: lake.view("above").inputs, take_place_and_drop),
    "held, old rows dropped": (lambda _, held: held.definition, take_place_and_drop),
}


@pytest.mark.slow
@pytest.mark.parametrize(("ask", "happens"), ASKED.values(), ids=ASKED.keys())
def test_view_that_takes_its_place_before_any_read_of_a_question_is_found(filled, tmp_path, ask, happens):
    ask_at_every_moment(filled, tmp_path, ask, happens)


@pytest.mark.slow
def test_source_is_found_whenever_its_old_rows_are_dropped(filled, tmp_path):
    swapped = tmp_path / "swapped"
    shutil.copytree(filled, swapped)
    take_place(open_lake(swapped))

    def ask(lake: fm.Lake, _: View) -> None:
        assert find_input_name(lake.store, old, "daily") == "daily"

    old = str(open_lake(swapped)["daily-old-1"].id)
    ask_at_every_moment(swapped, tmp_path, ask, lambda lake: lake.drop("daily-old-1"))


def ask_at_every_moment(start: Path, tmp_path: Path, ask: Ask, happens: Happens) -> None:
    for moment in range(1, 1000):
        folder = tmp_path / str(moment)
        shutil.copytree(start, folder)
        store = Interrupted(folder)
        lake = fm.Lake(store, runtime=Runtime(session=NoSession()))
        held = lake.view("daily")
        store.happens, store.left = partial(happens, open_lake(folder)), moment
        ask(lake, held)
        shutil.rmtree(folder)
        if store.left > 0:
            break  # it asks no further
    assert moment > 2


def test_refresh_of_a_view_that_is_replaced_meanwhile_leaves_the_old_rows_alone(tmp_path: Path):
    lake = make_lake(tmp_path / "lake")
    write(lake, [(5, "z", 7)])
    run, old = RefreshAttempt.run, []

    def replaced_first(attempt: RefreshAttempt) -> RefreshReport:
        if not old:
            other = open_lake(tmp_path / "lake")
            other.view("daily", sql=FINER)
            old.append(shown(other))  # before any refresh of it runs an attempt
            other.view("daily").refresh()
        return run(attempt)

    with mock.patch.object(RefreshAttempt, "run", replaced_first):
        lake.view("daily").refresh()
    assert shown(lake, "daily-old-1") == old[0]
    assert shown(lake) == right(lake, FINER)
