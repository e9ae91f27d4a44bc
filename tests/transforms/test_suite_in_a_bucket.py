"""Steps in a bucket: tests of a run, of its versions and of crashes, in another store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from in_buckets import folders_in_a_bucket
from transforms.test_run import (  # noqa: F401  the same tests, in a bucket
    test_deleted_key_loses_its_rows_without_a_call,
    test_every_key_is_processed_once_and_the_output_is_made,
    test_inputs_moved_and_nothing_changed_is_one_event_that_carries_the_last_offset,
    test_nothing_new_commits_nothing,
    test_only_keys_that_changed_are_processed_again,
    world,
)
from transforms.test_run_outputs import (  # noqa: F401
    test_crash_between_two_outputs_is_made_good_without_calls_or_duplicates,
    test_rows_that_a_crash_left_in_one_output_go_when_their_key_does,
    test_second_output_that_was_dropped_is_filled_again,
)
from transforms.test_run_versions import (  # noqa: F401
    test_new_version_with_more_columns_that_was_killed_goes_on_from_its_checkpoints,
)
from transforms.worlds import in_this_process

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _bucket() -> Iterator[None]:
    with folders_in_a_bucket(), in_this_process():
        yield
