"""The order of a checkup: this machine first, then where the lake is, then the lake itself; the place to start."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial

from floodmark.doctor import clock, disk, file_system, folders, health, spark, versions
from floodmark.doctor.conditional import check_conditional
from floodmark.doctor.finding import Finding, attempted
from floodmark.garbage.collect import store_time
from floodmark.lake import Lake


def check_machine() -> Iterator[Finding]:
    """What needs no lake: Python, packages, Java, the clock, and folders for temporary files."""
    yield versions.check_python()
    yield from versions.check_packages()
    yield spark.check_java()
    yield clock.check_clock()
    yield folders.check_temporary()
    yield folders.check_cache()


def check_spark(settings: Mapping[str, str]) -> Iterator[Finding]:
    """That a session starts: the one check that takes seconds."""
    yield from attempted("spark session", lambda: [spark.check_session(settings)])


def check_lake(lake: Lake) -> Iterator[Finding]:
    """Where the lake is, and how it is. Small objects are put there, and removed."""
    store = lake.store
    inside = store.local_path("names")
    if inside is not None:
        yield from attempted("disk space", partial(disk.check_disk, inside.parent))
        yield from attempted("files", lambda: file_system.check_file_system(store.staging()))
    else:
        yield from attempted("conditional puts", lambda: [check_conditional(store)])
    yield from attempted("object times", lambda: [clock.check_file_times(partial(store_time, store))])
    yield from attempted("names", partial(health.check_names, store))
    yield from attempted("datasets", lambda: _datasets(lake))
    yield from attempted("staging", lambda: health.check_staging(store, time.time()))
    yield from attempted("unnamed datasets", lambda: health.check_unnamed(store, time.time()))


def _datasets(lake: Lake) -> Iterator[Finding]:
    newest: tuple[float, str] | None = None
    for examined in health.examine(lake):
        yield from examined.findings
        if examined.newest is not None:
            newest = max(newest or (0.0, ""), (examined.newest, examined.name))
    yield clock.check_newest(None) if newest is None else clock.check_newest(*newest)
