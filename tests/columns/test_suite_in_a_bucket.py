"""Computed columns in a bucket: tests of backfills, of crashes and of damage, in another store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import floodmark as fm
from columns.counting import Calls
from columns.test_must_hold import (  # noqa: F401  the same tests, in a bucket
    test_added_rows_are_the_only_ones_computed,
    test_alteration_during_a_backfill_wins,
    test_column_dropped_and_added_again_with_the_same_function_calls_nothing,
    test_crash_in_the_middle_of_a_version_bump_keeps_old_values_and_resumes,
    test_fold_of_the_source_computes_nothing,
    test_fragments_that_are_computed_but_not_committed_call_nothing,
    test_row_updated_in_place_is_the_only_one_computed_again,
    test_rows_deleted_between_a_crash_and_its_resumption_are_left_out,
)
from columns.worlds import CrashingBucket, World
from small_s3 import small_s3

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with small_s3() as server:
        lake = fm.Lake(server.store(kind=CrashingBucket))
        lake.create("d", key=["id"], schema={"id": "int64", "v": "int64"})
        yield World(lake, Calls(tmp_path))
