"""Numbers and times as people say them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from floodmark.cli import output

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "just now"),
        (-30, "just now"),
        (5, "5 seconds ago"),
        (60, "1 minute ago"),
        (3 * 60 + 59, "3 minutes ago"),
        (3600, "1 hour ago"),
        (2 * 86400 + 5, "2 days ago"),
        (70 * 86400, "2 months ago"),
        (800 * 86400, "2 years ago"),
        (-3600, "2026-11-15 13:00:00+00:00"),
    ],
)
def test_how_long_ago(seconds, expected):
    assert output.format_age(NOW - timedelta(seconds=seconds), NOW) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (999_949, "999.9 KB"),
        (999_950, "1.0 MB"),
        (5 * 10**12, "5.0 TB"),
        (5 * 10**15, "5,000.0 TB"),
    ],
)
def test_size(count, expected):
    assert output.format_bytes(count) == expected
