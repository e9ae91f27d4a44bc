"""A small pipeline from files to SQL, step by step, with commands that you can type yourself."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from make_data import LATE_ROWS, ROWS
from stage import Off, Stage

import floodmark as fm
from floodmark.dataset import Dataset

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BY_ZONE = "select zone, count(*) as trips, round(avg(fare), 2) as fare from trips group by zone order by zone"


@dataclass(frozen=True)
class Demo:
    """The steps of the demo, in order: each needs the lake that the one before it leaves."""

    stage: Stage
    files: Path
    scratch: Path

    @property
    def trips(self) -> Dataset:
        return fm.Lake(self.stage.folder / self.stage.lake)["trips"]

    def script(self, name: str) -> str:
        path = HERE / name
        return f"python {path.relative_to(ROOT) if self.stage.folder == ROOT else path}"

    @property
    def consume(self) -> str:
        return f"{self.script('consumer.py')} {self.stage.lake} {self.files}/consumer.json"

    def make_files(self) -> None:
        """Files arrive"""
        self.stage.tell(
            f"""Three months of generated taxi trips, {ROWS:,} per month: two as CSV, one as Parquet. Also some trips
            that were reported late, and an April with a wrong export."""
        )
        self.stage.run(f"{self.script('make_data.py')} {self.files}")

    def ingest(self) -> None:
        """A lake, a dataset, three months"""
        self.stage.tell(
            """A dataset is an append-only sequence of records. Each record gets the next number, its offset, at
            commit. The source and the state identify a delivery."""
        )
        self.stage.run("floodmark init")
        done = [
            self.stage.run(
                f"floodmark ingest trips {self.files}/2026-01.csv --event-time pickup_at {_from('2026-01')}"
            ),
            self.stage.run(f"floodmark ingest trips {self.files}/2026-02.csv {_from('2026-02')}"),
            self.stage.run(f"floodmark ingest trips {self.files}/2026-03.parquet {_from('2026-03')}"),
        ]
        self.stage.run("floodmark list")
        seconds = sum(shown.seconds for shown in done)
        self.stage.check(
            f"{self.trips.count():,} records in {seconds:.1f} s, with three starts of Python and without Spark",
            self.trips.count() == 3 * ROWS,
        )

    def ingest_again(self) -> None:
        """The same delivery again"""
        self.stage.tell("After a retry or a restarted job: the same source and state again write nothing.")
        before = self.trips.head
        self.stage.run(f"floodmark ingest trips {self.files}/2026-01.csv {_from('2026-01')}")
        self.stage.check("the head of the chain did not change", self.trips.head == before)

    def ask(self) -> None:
        """Query with DuckDB and with Spark"""
        self.stage.tell(
            "DuckDB answers small queries without a JVM. Spark gives the same result, on one machine or on many."
        )
        duckdb = self.stage.run(f'floodmark sql "{BY_ZONE}"')
        spark = self.stage.run(f'floodmark sql --spark "{BY_ZONE}"')
        self.stage.check("both results are equal", duckdb.answer == spark.answer and "Airport" in spark.answer)

    def late_rows(self) -> None:
        """Late rows, and a consumer that tracks its position"""
        self.stage.tell(
            """The consumer adds up fares and stores the position up to which it has read. Then trips of
            January and February arrive, after all of March."""
        )
        self.stage.run(self.consume)
        newest = self.trips.watermark
        self.stage.run(f"floodmark ingest trips {self.files}/late.csv {_from('late')}")
        again = self.stage.run(self.consume)
        self.stage.check(
            f"the second time it read {LATE_ROWS:,} records, not {self.trips.count():,}",
            f"read {LATE_ROWS:,} records" in again.said,
        )
        late = self.trips.changes_arrow(since=3 * ROWS - 1).column("pickup_at").to_pylist()
        by_time = sum(newest is None or pickup > newest for pickup in late)
        self.stage.check(f"a consumer that tracks the newest pickup time would have read {by_time}", by_time == 0)

    def derive(self) -> None:
        """Spark reads one dataset and writes another"""
        self.stage.tell(
            """A groupBy over all trips. The result is written with the offset up to which trips were read as its
            source state, so a second write of the same result is ignored."""
        )
        self.stage.run(f"{self.script('revenue.py')} {self.stage.lake}")
        self.stage.run('floodmark sql "select * from revenue order by fares desc limit 3"')
        lake = fm.Lake(self.stage.folder / self.stage.lake)
        query = "select (select sum(trips) from revenue) = (select count(*) from trips) as same"
        self.stage.check("its trips add up to those in the ledger", lake.sql(query).to_pylist() == [{"same": True}])

    def refuse(self) -> None:
        """A bad file is refused"""
        self.stage.tell("In the April export the fare is text. The whole file is refused, and no row becomes visible.")
        before = self.trips.head
        shown = self.stage.run(f"floodmark ingest trips {self.files}/2026-04.csv {_from('2026-04')}", expect=1)
        self.stage.check(
            "the error names the file and the value, and the head did not change",
            "2026-04.csv" in shown.said and "EUR" in shown.said and self.trips.head == before,
        )

    def look_back(self) -> None:
        """History and verification"""
        self.stage.tell("Every block has the hash of the previous block and of its data. Verify checks all of them.")
        self.stage.run("floodmark log trips -n 5")
        self.stage.run("floodmark verify")
        past = self.trips.to_arrow(as_of=ROWS - 1).num_rows
        self.stage.check(
            f"earlier states can be read: as of offset {ROWS - 1} there were {past:,} records", past == ROWS
        )

    def damage(self) -> None:
        """Corruption"""
        self.stage.tell("In a copy of the lake, one bit of one file changes; its size does not.")
        copy = self.scratch / "copy"
        shutil.copytree(self.stage.folder / self.stage.lake, copy)
        hurt = self.stage.run(f"{self.script('damage.py')} {copy} fare")
        shown = self.stage.run(f"floodmark verify trips --lake {copy}", expect=3)
        file = hurt.answer.split()[-1]
        self.stage.check("verify names the file and the column", file in shown.said and "column 'fare'" in shown.said)

    def purge(self) -> None:
        """Retention"""
        self.stage.tell("Purge January: its data is deleted permanently; the chain and all offsets stay.")
        before = self.trips.last_offset
        self.stage.run("floodmark purge trips --before 2026-02-01 --yes")
        self.stage.run("floodmark verify trips")
        self.stage.check(
            f"{self.trips.count():,} records are left, and the last offset is still {before}",
            self.trips.count() == 2 * ROWS + LATE_ROWS and self.trips.last_offset == before,
        )
        shown = self.stage.run(self.consume)
        self.stage.check("the consumer has nothing to do", "read 0 records" in shown.said)

    def steps(self) -> list[Callable[[], None]]:
        return [
            self.make_files,
            self.ingest,
            self.ingest_again,
            self.ask,
            self.late_rows,
            self.derive,
            self.refuse,
            self.look_back,
            self.damage,
            self.purge,
        ]


def _from(state: str) -> str:
    return f"--source files --state {state}"


def main() -> int:
    """Run all steps in a new lake."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT, help="where to put the lake and the files (default: here)")
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    files = Path("examples/trips/files")
    lake = "demo-lake"
    for left in (folder / lake, folder / files):
        shutil.rmtree(left, ignore_errors=True)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="floodmark-demo-") as scratch:
        demo = Demo(Stage(folder, lake), files, Path(scratch))
        steps = demo.steps()
        print(f"$ rm -rf {lake} {files}; export FLOODMARK_LAKE={lake}")
        try:
            for number, step in enumerate(steps, 1):
                demo.stage.title(number, len(steps), step.__doc__ or "")
                step()
        except Off as off:
            print(f"\n✗ {off}", file=sys.stderr)
            return 1
    print(f"\nAll {len(steps)} steps passed, in {time.perf_counter() - start:.0f} s.")
    print("The lake is in ./demo-lake, the files are in ./examples/trips/files. Next:")
    print("  export FLOODMARK_LAKE=demo-lake; .venv/bin/floodmark --help")
    print("  docs/ledger.md explains how it works, docs/format.md the files in the lake.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
