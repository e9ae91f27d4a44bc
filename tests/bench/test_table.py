"""The table of all benchmarks: figures beside bars, and what the exit code says of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.made import broken, measured, of, record
from summary.bars import Bar
from summary.running import Record
from summary.table import Row, document, exit_code, markdown, rows


def row(records: list[Record], bench: str, figure: str) -> Row:
    (found,) = [one for one in rows(records) if (one.bench, one.figure) == (bench, figure)]
    return found


def test_a_figure_within_its_bar_is_met():
    found = row([record("ledger_write", files=1.2, frame=1.0)], "ledger_write", "files")
    assert (found.verdict, found.value, found.bar, found.issue) == ("met", 1.2, "at most 1.2", 2)


def test_a_figure_beyond_its_bar_is_missed_and_named():
    records = [record("ledger_write", files=1.21, frame=1.0)]
    assert row(records, "ledger_write", "files").verdict == "missed"
    assert exit_code(records) == 1
    assert "**Missed: `ledger_write` files 1.21 (at most 1.2).**" in markdown(records)


def test_all_bars_met_end_with_0():
    assert exit_code([record("ledger_write", files=0.9, frame=1.0)]) == 0


def test_a_bar_whose_figure_the_benchmark_does_not_give_is_not_measured():
    records = [record("ledger_write", files=0.9)]
    found = row(records, "ledger_write", "frame")
    assert (found.verdict, found.value) == ("not measured", None)
    assert "no figure 'frame'" in found.detail
    assert exit_code(records) == 2


@pytest.mark.parametrize("state", ["failed", "timed out"])
def test_a_benchmark_without_a_result_is_a_row_that_says_so(state):
    records = [record("ledger_write", files=0.9, frame=1.0), broken("late_spread", state)]
    assert row(records, "late_spread", "bytes").detail == f"the benchmark {state}"
    assert f"`late_spread` {state}" in markdown(records)
    assert "ended with 1: ValueError" in markdown(records)
    assert exit_code(records) == 2


def test_what_was_not_run_is_not_measured_and_does_not_count():
    records = [record("ledger_write", files=0.9, frame=1.0)]
    assert row(records, "late_spread", "bytes").detail == "it was not run"
    assert exit_code(records) == 0


def test_a_bar_for_much_data_says_nothing_of_little():
    large = measured("view_refresh", rows=0.5, groups=0.1, nothing=0.1)
    small = replace(large, sizes={"rows": 9_999_999})
    assert row([of(large)], "view_refresh", "rows").verdict == "missed"
    found = row([of(small)], "view_refresh", "rows")
    assert (found.verdict, found.value) == ("not measured", 0.5)
    assert "10,000,000 rows" in found.detail
    assert exit_code([of(small)]) == 0


def test_a_figure_without_a_bar_is_only_shown():
    found = row([record("ledger_read", scan=1.0, newest=1.0, slices=14.0)], "ledger_read", "slices")
    assert (found.verdict, found.bar, found.issue) == ("shown only", "", None)


@pytest.mark.parametrize(
    ("comparison", "kept", "not_kept"),
    [("at most", 2.0, 2.1), ("under", 1.9, 2.0), ("at least", 2.0, 1.9), ("exactly", 2.0, 1.9)],
)
def test_each_comparison(comparison, kept, not_kept):
    bar = Bar("x", "y", 1, comparison, 2.0, "")
    assert bar.keeps(kept)
    assert not bar.keeps(not_kept)
    assert not bar.keeps(float("nan"))


def test_bars_are_said_as_the_issues_say_them():
    texts = {bound: Bar("x", "y", 1, "at most", bound, "").text for bound in (1 / 50, 1 / 5, 0.4, 0.7, 4, 0)}
    assert list(texts.values()) == [
        "at most 1/50",
        "at most 1/5",
        "at most 0.4",
        "at most 0.7",
        "at most 4",
        "at most 0",
    ]


def test_the_table_says_machine_sizes_and_load():
    text = markdown([record("late_spread", bytes=1.0, wrong=0, largest=1.0), of(measured("incremental"))])
    assert "Measured 2026-11-16, quick sizes, on 2 cores." in text
    assert "| `incremental` | quick: rows 10,000,000 | 2026-11-16 20:00 | 3 | 0.5 |  |" in text


def test_the_lines_of_a_table_have_as_many_cells_as_its_head():
    records = [record("ledger_read", scan=1.0, newest=9.0, slices=14.0), broken("resume")]
    lines = [line for line in markdown(records).splitlines() if line.startswith("|")]
    widths = {line.count("|") for line in lines}
    assert widths <= {8, 5, 7}
    assert len(lines) > 70


def test_the_document_can_be_read_back():
    records = [record("ledger_write", files=0.9, frame=1.0), broken("resume")]
    read = json.loads(json.dumps(document(records)))
    assert [Record.of(one) for one in read["runs"]] == records
    assert {one["verdict"] for one in read["table"]} == {"met", "not measured"}
