"""A streaming query from one dataset to another, in a process that kills itself and its JVM when it is told to.

python -m spark_source.copying LAKE CHECKPOINT never
python -m spark_source.copying LAKE CHECKPOINT before 2     # in the middle of the commit of batch 2
python -m spark_source.copying LAKE CHECKPOINT after 2      # committed, and Spark does not know yet
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import floodmark as fm
from floodmark.engine import ArchiveUse, Profile, Session
from floodmark.ledger import write

SETTINGS = {"spark.master": "local[2]", "spark.driver.memory": "1g", "spark.ui.enabled": "false"}


def die(*_: Any) -> None:
    os.killpg(0, signal.SIGKILL)


def main(lake: str, checkpoint: str, when: str, number: str = "-1") -> None:
    deliver = fm.sink(lake, "copy")

    def copy(batch: Any, batch_id: int) -> None:
        mine = batch_id == int(number)
        if mine and when == "before":
            write.publish = die
        deliver(batch, batch_id)
        if mine and when == "after":
            die()

    with Session(settings=SETTINGS, profile=Profile.SHORT, archive=ArchiveUse.USE) as session:
        spark = session.get()
        fm.register(spark, lake)
        records = spark.readStream.format("floodmark").option("maxRecordsPerTrigger", 3).load("events")
        query = records.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query.foreachBatch(copy).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
