"""On a terminal: colours, drawn tables, relative times, and no more rows than one can read."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.user import on_terminal as in_terminal


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_table_is_drawn(trips, on_terminal):
    shown = on_terminal("list", columns=100)
    assert "\x1b[1m" in shown
    assert "────" in shown
    assert re.search(r"trips +append +3 ", plain(shown))


@pytest.mark.process
def test_process_on_a_terminal_draws_the_same(trips, folder, on_terminal):
    with in_terminal(folder, "schema", trips, columns=100) as terminal:
        assert terminal.end() == 0
    assert terminal.received == on_terminal("schema", trips, columns=100)


def test_what_does_not_fit_has_a_line_per_field(trips, on_terminal):
    lines = plain(on_terminal("tail", trips, "-n", "2", columns=60)).splitlines()
    assert lines[0].split() == ["offset", "1"]
    assert "pay          null" in lines
    assert "pay          cash" in lines


def test_table_is_drawn_only_where_nothing_of_it_is_cut_off(images, on_terminal):
    """At the width that it needs, and at one less."""
    drawn = plain(on_terminal("columns", "images", columns=200)).splitlines()
    needed = len(drawn[1])
    assert drawn[1] == "─" * needed
    shown = plain(on_terminal("columns", "images", columns=needed)).splitlines()
    assert shown[:4] == drawn[:4]
    narrow = plain(on_terminal("columns", "images", columns=needed - 1)).splitlines()
    assert narrow[:2] == ["column    brightness", "type      double"]


def test_pieces_have_colours_and_fit(run, folder, on_terminal):
    run("init")
    times = pa.array([datetime(2026, 11, 1, hour, tzinfo=UTC) for hour in range(24)], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"at": times}), folder / "day.parquet")
    options = ("--event-time", "at", "--partition-by", "day", "--row-group-size", "6")
    run("ingest", "ticks", "day.parquet", *options)
    for columns in (80, 120):
        shown = on_terminal("timeline", "ticks", "--pieces", columns=columns)
        assert "\x1b[92m│█" in shown
        (line,) = [line for line in plain(shown).splitlines() if line.startswith("settled")]
        assert line.count("│") == 4
        assert columns - 8 < len(line.rstrip()) < columns


def test_log_has_colours_and_relative_times(trips, on_terminal):
    shown = on_terminal("log", trips, "-n", "1", columns=120)
    assert "\x1b[33m" in shown
    assert re.search(r"(just now|\d+ seconds? ago|\d+ minutes? ago) +AddData", plain(shown))
    assert "older blocks" in plain(shown)


def test_many_rows_are_cut_and_the_rest_is_counted(trips, on_terminal):
    shown = plain(on_terminal("sql", "select * from range(1000)", columns=80))
    assert " 199 " in shown
    assert " 200 " not in shown
    assert "800 more rows" in shown
