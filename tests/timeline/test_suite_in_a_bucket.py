"""Timelines in a bucket: tests of updates, of merges and of faults, in another store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from in_buckets import folders_in_a_bucket
from timeline.test_updating import (  # noqa: F401  the same tests, in a bucket
    test_always_rewrites_just_the_row_groups_that_late_rows_belong_to,
    test_killed_rows_are_counted_and_left_out_by_the_next_merge,
    test_late_rows_wait_until_merging_pays_and_are_read_in_their_place,
    test_narrow_late_rows_cut_a_row_group_by_reference,
    test_purged_records_do_not_survive_a_merge,
    test_update_whose_swap_is_refused_tries_again,
    test_write_stays_written_when_a_fault_keeps_its_timeline_from_following,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _bucket() -> Iterator[None]:
    with folders_in_a_bucket():
        yield
