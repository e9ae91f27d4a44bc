"""Write and read a lake by the workers of a cluster: run by test_cluster.py as a driver of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import floodmark as fm
from floodmark.engine.session import ArchiveUse, Session
from floodmark.engine.spark_launch import Profile
from floodmark.ledger import parts, spark_read, staging
from floodmark.rows import buckets, merge


def main(folder: Path, settings: dict[str, str]) -> None:
    """Print what came of it, as JSON."""
    staging.HERE_BYTES = 0  # all files are work for the cluster
    parts.PART_BYTES = merge.PART_BYTES = 1 << 13
    buckets.PART_BYTES = 1 << 15  # few slices: each is a task
    with Session(settings=settings, profile=Profile.SHORT, archive=ArchiveUse.USE) as session:
        lake = fm.Lake(folder / "lake", runtime=fm.Runtime(session=session))
        spark = session.get()
        computed = lake.create("computed")
        first = computed.write(spark.range(0, 1000, 1, 2).selectExpr("id", "id * 2 as twice"))
        for i in range(3):
            ids = list(range(1000 + 500 * i, 1500 + 500 * i))
            table = pa.table({"id": ids, "twice": [2 * n for n in ids]})
            pq.write_table(table, folder / f"{i}.parquet", row_group_size=100)
        second = computed.write(str(folder / "*.parquet"))
        native = computed.read().selectExpr("sum(id)", "sum(twice)", "count(*)").collect()[0]
        spark_read.NATIVE_SLICES = 0
        tasks = computed.read().selectExpr("sum(id)", "sum(twice)", "count(*)").collect()[0]
        changes = [row["offset"] for row in computed.changes(since=1990).collect()]
        people = lake.create("people", key="id")
        loaded = people.write(spark.range(0, 1000, 1, 2).selectExpr("id", "id * 2 as twice"))
        upserted = people.write(spark.range(500, 1500, 1, 2).selectExpr("id", "id * if(id % 2 = 0, 2, 3) as twice"))
        filed = people.write(str(folder / "*.parquet"))
        print(
            json.dumps(
                {
                    "intervals": [[first.start, first.end], [second.start, second.end]],
                    "slices": second.slices,
                    "native": list(native),
                    "tasks": list(tasks),
                    "changes": changes,
                    "ok": computed.verify().ok,
                    "keyed": [[c.new, c.changed, c.unchanged] for c in (loaded, upserted, filed)],
                    "people": list(people.read().selectExpr("sum(id)", "sum(twice)", "count(*)").collect()[0]),
                    "people_ok": people.verify().ok,
                    "staging": [p.name for p in lake.store.staging().iterdir()],
                }
            )
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
