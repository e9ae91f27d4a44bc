"""The line about a timeline is right after one update, several, none, and when the timeline was made anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from floodmark.cli.ingest import TimelineChange
from floodmark.timeline.root import LastUpdate, Root


def brought(before: Root, after: Root, records: int) -> TimelineChange:
    dataset: Any = SimpleNamespace(last_offset=records - 1 if records else None)
    return TimelineChange.between(before, after, dataset)


BEFORE = Root(version=3, applied=100, bytes_in=1000, bytes_written=5000, last=LastUpdate(late_rows=7, rows=9))


def test_one_update_is_what_the_root_says_of_it():
    last = LastUpdate(rows=10, late_rows=4, bytes_in=200, bytes_written=500)
    after = Root(version=4, applied=110, bytes_in=1200, bytes_written=5500, last=last)
    assert brought(BEFORE, after, 110).line() == "  timeline: 4 late rows, 500 B written (2.50 × the new rows)"


def test_timeline_that_was_made_anew_counts_all_of_it():
    last = LastUpdate(rows=110, late_rows=4, bytes_in=1200, bytes_written=300)
    after = Root(version=4, applied=110, bytes_in=1200, bytes_written=300, last=last)
    assert brought(BEFORE, after, 110) == TimelineChange(110, 4, 1200, 300, 0)


def test_several_updates_are_summed():
    last = LastUpdate(rows=10, bytes_in=200, bytes_written=500)
    after = Root(version=6, applied=150, bytes_in=1900, bytes_written=6500, last=last)
    assert brought(BEFORE, after, 150) == TimelineChange(50, 0, 900, 1500, 0)


@pytest.mark.parametrize(
    ("records", "line"), [(100, "up to date"), (101, "1 record behind"), (120, "20 records behind")]
)
def test_no_update_says_how_far_it_is_behind(records, line):
    assert brought(BEFORE, BEFORE, records).line() == f"  timeline: {line}"
    assert brought(BEFORE, BEFORE, records).amplification is None


def test_update_that_did_not_reach_the_end_says_both():
    after = Root(version=4, applied=110, last=LastUpdate(rows=10, late_rows=1, bytes_in=100, bytes_written=50))
    assert (
        brought(BEFORE, after, 130).line().endswith("1 late row, 50 B written (0.50 × the new rows), 20 records behind")
    )


def test_dataset_without_records_is_not_behind():
    assert brought(Root(), Root(), 0).behind == 0
