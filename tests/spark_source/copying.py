"""A streaming query from one dataset to another, in a process that kills itself and its JVM at a given point.

python -m spark_source.copying LAKE CHECKPOINT before 2     # in the middle of the commit of batch 2
python -m spark_source.copying LAKE CHECKPOINT after 2      # committed, and Spark has not noted it
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import floodmark as fm
from floodmark.engine.session import ArchiveUse, Session
from floodmark.engine.spark_launch import Profile
from floodmark.storage.local import LocalStore

SETTINGS = {"spark.master": "local[2]", "spark.driver.memory": "1g", "spark.ui.enabled": "false"}


def die() -> None:
    os.killpg(0, signal.SIGKILL)


class DyingStore(LocalStore):
    """A store whose process dies when a commit is about to become visible."""

    is_armed = False

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        if self.is_armed:
            die()
        return super().compare_and_swap(key, expected, new)


def copy_records(spark: Any, lake: str, checkpoint: str, deliver: Callable[[Any, int], None]) -> None:
    """Copy what was not copied before, three records in a batch."""
    fm.register(spark, lake)
    records = spark.readStream.format("floodmark").option("maxRecordsPerTrigger", 3).load("events")
    query = records.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.foreachBatch(deliver).start().awaitTermination()


def main(lake: str, checkpoint: str, when: str, number: str) -> None:
    store = DyingStore(lake)
    write = fm.stream_sink(fm.Lake(store), "copy")

    def deliver(batch: Any, batch_id: int) -> None:
        is_last = batch_id == int(number)
        store.is_armed = is_last and when == "before"
        write(batch, batch_id)
        if is_last:
            die()

    with Session(settings=SETTINGS, profile=Profile.SHORT, archive=ArchiveUse.USE) as session:
        copy_records(session.get(), lake, checkpoint, deliver)


if __name__ == "__main__":
    main(*sys.argv[1:])
