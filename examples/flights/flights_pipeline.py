"""Flights from New York in 2013, each with the weather at its airport in the hour of its departure."""

from __future__ import annotations

import numpy as np
import pandas as pd

from floodmark import BatchTransform, DatasetSpec, Pipeline, Required, Source, ViewSpec

FLIGHT = ["origin", "time_hour", "carrier", "flight"]
DRAWS = 2_500

flights = DatasetSpec("flights", key=FLIGHT, event_time="time_hour", partition_by="month", row_group_size=4_000)
weather = DatasetSpec("weather", key=["origin", "time_hour"], event_time="time_hour")
departures = DatasetSpec("departures", key=FLIGHT)


def with_weather(flights: pd.DataFrame, weather: pd.DataFrame) -> pd.DataFrame:
    """Flights with the weather of their hour and a word for it; null if the weather is not known (yet)."""
    columns = ["origin", "time_hour", "temp", "wind_speed", "precip", "visib"]
    found = flights.merge(weather[columns], how="left", on=["origin", "time_hour"])
    return found[[*FLIGHT, "dest", "month"]].assign(
        scheduled=time_of_day(found["sched_dep_time"]),
        dep_delay=found["dep_delay"].astype("Int64"),  # float because of nulls: cancelled flights
        arr_delay=found["arr_delay"].astype("Int64"),
        wind_speed=found["wind_speed"],
        precip=found["precip"],
        visib=found["visib"],
        sky=sky(found),
    )


def time_of_day(clock: pd.Series[int]) -> pd.Series[str]:
    """515 is 05:15. Raises for a number that is not a time of day."""
    wrong = clock[(clock % 100 >= 60) | (clock >= 2400)]
    if len(wrong):
        raise ValueError(f"{wrong.iloc[0]} is not a time of day")
    return (clock // 100).map("{:02d}:".format) + (clock % 100).map("{:02d}".format)


def sky(found: pd.DataFrame) -> pd.Series[str]:
    """One word for the weather: the first of fog, rain, wind, fair that applies."""
    kinds = [found["visib"] < 1, found["precip"] > 0, found["wind_speed"] > 25, found["visib"].notna()]
    said = np.select([kind.fillna(False) for kind in kinds], ["fog", "rain", "wind", "fair"], "unknown")
    return pd.Series(said, index=found.index)


pipeline = Pipeline(
    [
        Source(flights, files="inbox/flights*.csv"),
        Source(weather, files="inbox/weather*.csv"),
        BatchTransform(with_weather, [Required(flights), weather], [departures], transform_keys=FLIGHT),
        ViewSpec(
            "by_carrier",
            sql="""select carrier, month, count(*) as flights, count(dep_delay) as departed,
                          sum(dep_delay) as minutes_late
                   from departures group by carrier, month""",
        ),
        ViewSpec(
            "by_sky",
            sql="""select origin, sky, count(*) as flights, round(avg(dep_delay), 1) as delay,
                          round(avg(missed), 3) as missed
                   from departures group by origin, sky""",
        ),
    ]
)


@pipeline.column(departures, returns="float64")
def missed(flight: int, arr_delay: int | None) -> float | None:
    """Chance to miss a connection 90 minutes after the planned arrival, by random draws of the transfer time."""
    if arr_delay is None:
        return 1.0
    minutes = np.random.default_rng(flight).gamma(9.0, 5.0, DRAWS)
    return float(np.mean(arr_delay + minutes > 90))
