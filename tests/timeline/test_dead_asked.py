"""An update asks for the dead that may lie in what it touches, and for no others, however many there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.rows.key_index import KeyIndex
from floodmark.rows.rows import Rows
from timeline.layouts import assert_sound
from timeline.oracle import assert_right
from timeline.timeline_worlds import BEGIN, DAY, World, world

SECOND = 1_000_000


@pytest.fixture
def made(tmp_path: Path) -> World:
    """Rows that were corrected again and again, so that most records are dead."""
    made = world(tmp_path, kind="upsert")
    for n in range(4):
        write(made, range(100), BEGIN, n)
    return made


def write(made: World, ids: range, begin: int, n: int) -> None:
    table = made.table([begin + SECOND * (7 * i % 100) for i in ids])
    numbers = table.schema.get_field_index("id")
    table = table.set_column(numbers, table.schema.field(numbers), [list(ids)])
    made.dataset.write(table)


def asked(made: World, monkeypatch: pytest.MonkeyPatch, ids: range, begin: int) -> list[tuple[int, int]]:
    """Which offsets a write of these rows asked the key index about."""
    found: list[tuple[int, int]] = []
    real = KeyIndex.dead_within

    def noted(index: KeyIndex, ranges: list[tuple[int, int]], end: int) -> object:
        found.extend(ranges)
        return real(index, ranges, end)

    def refuse(*_: object) -> None:
        raise AssertionError("all the dead were listed")

    with monkeypatch.context() as patched:
        patched.setattr(KeyIndex, "dead_within", noted)
        patched.setattr(Rows, "dead", refuse)
        write(made, ids, begin, 9)
    return found


def test_rows_of_another_day_ask_about_themselves_alone(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = made.dataset.snapshot().next_offset
    assert len(made.dataset.parts.rows.dead(made.dataset.snapshot(), before)) >= 300
    found = asked(made, monkeypatch, range(1000, 1040), BEGIN + DAY)
    assert found == [(before, before + 40)]
    assert made.dataset.timeline_stats().behind == 0
    assert_sound(made.dataset)
    assert_right(made.dataset)


def test_late_rows_ask_about_what_they_are_merged_with(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = made.dataset.snapshot().next_offset
    found = asked(made, monkeypatch, range(1000, 1040), BEGIN)
    assert found[0] == (before, before + 40)
    assert_sound(made.dataset)
    assert_right(made.dataset)
    made.dataset.fold()
    assert made.dataset.timeline_stats().partitions[0].dead_rows == 0
    assert_right(made.dataset)
