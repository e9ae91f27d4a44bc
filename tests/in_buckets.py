"""Whole suites in a bucket: lakes that their tests open in a folder are under a prefix of a small S3 server instead."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from small_s3 import QUICK_RETRIES, SmallS3, small_s3

OPENERS = (
    "floodmark.lake.open_store",
    "histories.disks.LocalStore",
    "timeline.timeline_worlds.LocalStore",
    "columns.worlds.LocalStore",
)


@contextmanager
def folders_in_a_bucket() -> Iterator[SmallS3]:
    """Until the block ends, folders of lakes are prefixes in a bucket."""
    with small_s3() as server, ExitStack() as patches:

        def opened(folder: str | Path, _: Any = None) -> Any:
            prefix = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
            return server.store(prefix, retries=QUICK_RETRIES)

        for opener in OPENERS:
            patches.enter_context(mock.patch(opener, opened))
        yield server
