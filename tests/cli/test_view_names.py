"""Which views a command means, and what it says when there is none of that name. Starts no Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

import pytest

from floodmark.cli.targets import sort_by_dependency
from floodmark.errors import BadView
from floodmark.views import declare
from floodmark.views.definition import ViewDefinition


@dataclass(frozen=True)
class Declared:
    """A view as far as its order goes."""

    name: str
    inputs: tuple[str, ...] = ()


def ordered(*views: Declared) -> list[str]:
    return [view.name for view in sort_by_dependency(cast(Any, views))]


def test_view_comes_after_those_that_it_is_made_from():
    a, b, c = Declared("a", ("b",)), Declared("b", ("c", "data")), Declared("c", ("data",))
    assert ordered(a, b, c) == ["c", "b", "a"]


def test_views_that_have_nothing_to_do_with_each_other_keep_their_order():
    assert ordered(Declared("z"), Declared("a", ("data",)), Declared("m")) == ["z", "a", "m"]


def test_view_that_two_are_made_from_comes_once():
    base = Declared("base")
    assert ordered(Declared("x", ("base",)), Declared("y", ("base", "x")), base, base) == ["base", "x", "y"]


def test_circle_does_not_keep_anybody_waiting():
    assert sorted(ordered(Declared("a", ("b",)), Declared("b", ("a",)))) == ["a", "b"]


@pytest.mark.parametrize("command", [["refresh", "dialy"], ["view", "dialy"], ["view", "dialy", "--errors"]])
def test_unknown_view_without_any_says_how_to_declare_one(run, flights, command):
    answer = run(*command)
    assert (answer.code, answer.out) == (1, "")
    assert "there is no view 'dialy' in" in answer.err
    assert "`floodmark view dialy --sql …` declares one" in answer.err


@pytest.mark.parametrize("command", [["refresh", "flights"], ["view", "flights"]])
def test_dataset_that_is_no_view_is_said_to_be_none(run, flights, command):
    answer = run(*command)
    assert (answer.code, answer.out) == (1, "")
    assert "'flights' is a dataset, not a view" in answer.err
    assert "lake[" not in answer.err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["refresh"], "Name the views, or add --all."),
        (["refresh", "daily", "--all"], "Name views or use --all, not both."),
        (["view", "--sql", "select 1"], "--sql needs the NAME of a view."),
        (["view", "daily", "--sql", "select 1", "--errors"], "--sql and --errors cannot be combined."),
        (["view", "daily", "--file", "nowhere.sql"], "nowhere.sql"),
        (["refresh", "daily", "--udf", "vision.py:brightness"], "vision:brightness"),
    ],
)
def test_command_that_makes_no_sense_is_not_understood(run, flights, command, said):
    answer = run(*command)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


@pytest.mark.parametrize(("command", "field"), [(["refresh", "--all"], "refreshes"), (["view"], "views")])
def test_lake_without_views_says_so(run, flights, command, field):
    answer = run(*command)
    assert (answer.code, answer.out) == (0, "")
    assert "no views in" in answer.err
    assert run(*command, "--json").json[field] == []


@pytest.mark.parametrize("command", [["refresh", "--all"], ["view"]])
def test_dataset_that_cannot_be_read_is_named(run, flights, folder, command):
    next((folder / "lake" / "datasets").glob("*/refs/head")).write_text("nonsense")
    answer = run(*command)
    assert answer.code == 1
    assert re.match(r"error: (flights|weather): ", answer.err)
    field = "refreshes" if "refresh" in command else "views"
    (found,) = run(*command, "--json").json[field]
    assert found["view"] in ("flights", "weather")
    assert set(found["error"]) == {"type", "message", "hint"}


def test_file_with_a_byte_order_mark_is_read_without_it(run, flights, folder, monkeypatch):
    """Editors on Windows write one. What would go to Spark is looked at here."""
    asked = []

    def analyse(_: object, definition: ViewDefinition, **__: object) -> None:
        asked.append(definition.sql)
        raise BadView("enough", hint="")

    monkeypatch.setattr(declare, "analyse_for_lake", analyse)
    (folder / "daily.sql").write_bytes("select 'größe' s from flights".encode("utf-8-sig"))
    run("view", "daily", "--file", "daily.sql")
    assert asked == ["select 'größe' s from flights"]


def test_file_that_is_no_utf_8_is_said_to_be_none(run, flights, folder):
    (folder / "daily.sql").write_bytes("select * from flights".encode("utf-16"))
    answer = run("view", "daily", "--file", "daily.sql")
    assert (answer.code, answer.out) == (2, "")
    assert "daily.sql is not UTF-8 text" in answer.err
    assert "Traceback" not in answer.err
