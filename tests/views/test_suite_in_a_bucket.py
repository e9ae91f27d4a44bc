"""Views in a bucket: tests of refreshes, of failures and of purges, in another store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from in_buckets import folders_in_a_bucket
from views.test_refresh_mechanics import (  # noqa: F401  the same tests, in a bucket
    test_failure_on_the_way_leaves_the_view_as_it_was,
    test_nothing_new_is_no_block_and_no_file,
    test_only_rows_with_new_records_are_asked_about,
    test_purged_records_leave_the_view,
    test_rows_that_were_deleted_go_without_asking_anybody,
    test_somebody_who_commits_meanwhile_makes_it_start_again,
    test_source_that_moves_while_it_is_read_is_read_as_it_was,
    test_view_that_missed_a_purge_is_recomputed_and_a_new_one_reads_carried_rows,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _bucket() -> Iterator[None]:
    with folders_in_a_bucket():
        yield
